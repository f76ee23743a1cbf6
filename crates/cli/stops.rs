//! Stop strings over streamed text, wherever token borders fall.

/// Holds back text that may be the beginning of a stop string, and cuts the text before a whole one.
#[derive(Debug)]
pub(crate) struct Stops {
    strings: Vec<String>,
    held: String,
    stopped: bool,
}

impl Stops {
    /// Empty strings never stop anything.
    pub(crate) fn new(strings: &[String]) -> Self {
        let strings = strings.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { strings, held: String::new(), stopped: false }
    }

    /// Takes more text and returns what is now certain to belong to the output.
    ///
    /// The earliest stop string wins; after it nothing more comes out.
    pub(crate) fn push(&mut self, text: &str) -> String {
        if self.stopped {
            return String::new();
        }
        self.held.push_str(text);
        if let Some(at) = self.strings.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.stopped = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let keep = self.strings.iter().map(|stop| self.overlap(stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// What was held back, once no more text can come.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Whether a stop string was found.
    pub(crate) fn stopped(&self) -> bool {
        self.stopped
    }

    /// The length of the longest end of the held text that begins `stop`.
    fn overlap(&self, stop: &str) -> usize {
        let longest = stop.len().saturating_sub(1).min(self.held.len());
        let fits = |len: &usize| {
            stop.is_char_boundary(*len) && self.held.as_bytes().ends_with(&stop.as_bytes()[..*len])
        };
        (1..=longest).rev().find(fits).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|&stop| stop.into()).collect();
        let mut stops = Stops::new(&stops);
        let mut text = String::new();
        for piece in pieces {
            text += &stops.push(piece);
        }
        text += &stops.finish();
        (text, stops.stopped())
    }

    #[test]
    fn any_cut_of_the_text_gives_the_same() {
        let text = "one two — three, two: fin";
        let cases: [(&[&str], &str); 6] = [
            (&[], text),
            (&["two"], "one "),
            (&["three", " — t"], "one two"),
            (&["four", "—"], "one two "),
            (&["fin"], "one two — three, two: "),
            (&["finis", ""], text),
        ];
        let borders: Vec<usize> =
            (0..=text.len()).filter(|&at| text.is_char_boundary(at)).collect();
        for (stops, expected) in cases {
            for &a in &borders {
                for &b in borders.iter().filter(|&&b| b >= a) {
                    let (found, stopped) = feed(stops, &[&text[..a], &text[a..b], &text[b..]]);
                    assert_eq!(found, expected, "{stops:?}, cut at {a} and {b}");
                    assert_eq!(stopped, expected != text);
                }
            }
        }
    }

    #[test]
    fn nothing_certain_is_held_back() {
        let mut stops = Stops::new(&["aab".into()]);
        assert_eq!(stops.push("xa"), "x");
        assert_eq!(stops.push("a"), "");
        assert_eq!(stops.push("a"), "a");
        assert_eq!(stops.push("c"), "aac");
    }
}
