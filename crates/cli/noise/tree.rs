//! Where texts that should be one part: a tree of common beginnings, and how often each way was
//! taken.

use std::{collections::BTreeMap, ops::Range};

use serde_json::{Value, json};

/// A stretch that some texts have in common, and what follows it in them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Branch {
    /// Units (tokens, or characters) of each text that this stretch covers.
    pub(super) units: Range<usize>,
    /// Which texts go this way; the first stands for all.
    pub(super) texts: Vec<usize>,
    /// Where they part, the most frequent first; none where all end.
    pub(super) ways: Vec<Branch>,
}

impl Branch {
    /// The tree of all texts.
    pub(super) fn of<U: Ord>(texts: &[Vec<U>]) -> Self {
        Self::grow(texts, (0..texts.len()).collect(), 0)
    }

    fn grow<U: Ord>(texts: &[Vec<U>], own: Vec<usize>, from: usize) -> Self {
        let mut to = from;
        loop {
            // A text that ends here goes another way than those that go on.
            let mut groups: BTreeMap<Option<&U>, Vec<usize>> = BTreeMap::new();
            for &text in &own {
                groups.entry(texts[text].get(to)).or_default().push(text);
            }
            if groups.len() > 1 {
                let grown = groups.into_values().map(|group| Self::grow(texts, group, to));
                let mut ways: Vec<Self> = grown.collect();
                ways.sort_by_key(|way| (usize::MAX - way.texts.len(), way.texts[0]));
                return Self { units: from..to, texts: own, ways };
            }
            if groups.keys().all(Option::is_none) {
                return Self { units: from..to, texts: own, ways: Vec::new() };
            }
            to += 1;
        }
    }

    /// The different texts: groups of equal ones.
    pub(super) fn leaves(&self) -> Vec<&[usize]> {
        if self.ways.is_empty() {
            return vec![&self.texts];
        }
        self.ways.iter().flat_map(Self::leaves).collect()
    }

    /// The largest group of equal texts; of equally large ones that of the earliest text.
    pub(super) fn most_common(&self) -> &[usize] {
        let leaves = self.leaves();
        let key = |leaf: &&[usize]| (leaf.len(), usize::MAX - leaf.first().unwrap_or(&0));
        leaves.into_iter().max_by_key(key).unwrap_or(&[])
    }

    /// As JSON; `text` shows some units of a text.
    pub(super) fn to_json(&self, text: &dyn Fn(usize, Range<usize>) -> String) -> Value {
        let first = self.texts.first().copied().unwrap_or(0);
        json!({
            "position": self.units.start,
            "text": text(first, self.units.clone()),
            "count": self.texts.len(),
            "ways": self.ways.iter().map(|way| way.to_json(text)).collect::<Vec<_>>(),
        })
    }

    /// As indented lines.
    pub(super) fn lines(&self, text: &dyn Fn(usize, Range<usize>) -> String) -> Vec<String> {
        let first = self.texts.first().copied().unwrap_or(0);
        let own = shortened(&text(first, self.units.clone()));
        let ended = if self.ways.is_empty() { " (end)" } else { "" };
        let mut lines = vec![format!("{:>4} × {own:?}{ended}", self.texts.len())];
        for way in &self.ways {
            lines.extend(way.lines(text).into_iter().map(|line| format!("    {line}")));
        }
        lines
    }
}

/// At most 60 characters, of a longer text its two ends.
fn shortened(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    if characters.len() <= 60 {
        return text.to_owned();
    }
    let part = |range: &[char]| range.iter().collect::<String>();
    format!("{} … {}", part(&characters[..20]), part(&characters[characters.len() - 36..]))
}

/// Wilson's interval of 95 % for a share, from `count` of `all` independent runs.
pub(super) fn interval(count: usize, all: usize) -> [f64; 2] {
    const Z: f64 = 1.959_963_984_540_054;
    let (n, p) = (all as f64, count as f64 / all as f64);
    let scale = 1.0 + Z * Z / n;
    let middle = (p + Z * Z / (2.0 * n)) / scale;
    let half = Z / scale * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    [(middle - half).max(0.0), (middle + half).min(1.0)]
}

/// After `all` equal runs: a run that differs has at most this probability, with confidence 95 %, if
/// runs are independent.
pub(super) fn unseen(all: usize) -> f64 {
    1.0 - 0.05_f64.powf(1.0 / all.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<Vec<char>> {
        texts.iter().map(|text| text.chars().collect()).collect()
    }

    #[test]
    fn equal_texts_are_one_stretch() {
        let tree = Branch::of(&texts(&["abc", "abc"]));
        assert_eq!(tree, Branch { units: 0..3, texts: vec![0, 1], ways: Vec::new() });
        assert_eq!(tree.most_common(), [0, 1]);
    }

    #[test]
    fn texts_part_where_they_differ_or_end() {
        let tree = Branch::of(&texts(&["abcd", "abx", "abcd", "ab", "abxy"]));
        assert_eq!(tree.units, 0..2);
        let ways: Vec<&[usize]> = tree.ways.iter().map(|way| &way.texts[..]).collect();
        assert_eq!(ways, [&[0, 2][..], &[1, 4], &[3]]);
        assert_eq!(tree.leaves().len(), 4);
        assert_eq!(tree.most_common(), [0, 2]);
        assert_eq!(tree.ways[1].ways.len(), 2);
        assert_eq!(tree.ways[2].units, 2..2, "a text that ended");
    }

    #[test]
    fn intervals_hold_the_share_and_tighten() {
        for (count, all) in [(0, 20), (1, 20), (10, 20), (20, 20), (200, 400)] {
            let [low, high] = interval(count, all);
            let share = count as f64 / all as f64;
            assert!(0.0 <= low && low <= share && share <= high && high <= 1.0, "{count}/{all}");
        }
        // Wilson (1927) for 1 of 20.
        let [low, high] = interval(1, 20);
        assert!((low - 0.00888).abs() < 1e-4 && (high - 0.23613).abs() < 1e-4, "{low} {high}");
        assert!((unseen(20) - 0.1391).abs() < 1e-4);
    }
}
