//! End-to-end tests, through the binary only (but for the rules of the workspace).

mod architecture;
