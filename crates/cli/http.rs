//! What the program's clients of HTTP have in common.

use std::net::IpAddr;

/// Whether a host, as it stands in a URL, is this machine: what goes there nobody can read on the way.
pub(crate) fn is_local(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_this_machine() {
        for host in ["localhost", "127.0.0.1", "127.8.0.1", "[::1]"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["localhost.example", "10.0.0.1", "127.0.0.1.example", ""] {
            assert!(!is_local(host), "{host}");
        }
    }
}
