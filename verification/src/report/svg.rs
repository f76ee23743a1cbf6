//! Plots as inline SVG, drawn by hand: no script, no font, nothing to load.

use std::fmt::Write;

use super::{junit::escape, table::number};

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 56.0;
const BOTTOM: f64 = 44.0;
const TOP: f64 = 14.0;
const RIGHT: f64 = 14.0;

/// How values are laid along an axis.
#[derive(Clone, Copy, Debug)]
pub enum Scale {
    /// The two ends.
    Linear(f64, f64),
    /// Decimal logarithms of the two ends.
    Log(f64, f64),
}

impl Scale {
    /// From 0 to 1.
    fn at(self, value: f64) -> f64 {
        let share = match self {
            Self::Linear(low, high) => (value - low) / (high - low),
            Self::Log(low, high) => (value.max(1e-300).log10() - low) / (high - low),
        };
        share.clamp(-0.02, 1.02)
    }

    fn ticks(self) -> Vec<(f64, String)> {
        match self {
            Self::Linear(low, high) => (0..=4)
                .map(|i| low + (high - low) * f64::from(i) / 4.0)
                .map(|value| (value, format!("{}", (value * 1000.0).round() / 1000.0)))
                .collect(),
            Self::Log(low, high) => {
                let step = ((high - low) / 5.0).ceil().max(1.0);
                let mut ticks = Vec::new();
                let mut exponent = low.ceil();
                while exponent <= high + 1e-9 {
                    ticks.push((10f64.powf(exponent), format!("1e{exponent}")));
                    exponent += step;
                }
                ticks
            }
        }
    }
}

/// A plot in the making.
#[derive(Debug)]
pub struct Plot {
    x: Scale,
    y: Scale,
    body: String,
    x_label: String,
    y_label: String,
    title: String,
}

impl Plot {
    /// An empty plot; labels and title are plain text.
    #[must_use]
    pub fn new(title: &str, (x_label, x): (&str, Scale), (y_label, y): (&str, Scale)) -> Self {
        let own = |text: &str| escape(text);
        let (x_label, y_label, title) = (own(x_label), own(y_label), own(title));
        Self { x, y, body: String::new(), x_label, y_label, title }
    }

    fn place(&self, x: f64, y: f64) -> (f64, f64) {
        (
            LEFT + self.x.at(x) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - self.y.at(y) * (HEIGHT - BOTTOM - TOP),
        )
    }

    fn add(&mut self, shape: std::fmt::Arguments<'_>) {
        let _ = self.body.write_fmt(shape);
        self.body.push('\n');
    }

    /// A dot of this CSS class, with a text that shows when pointed at.
    pub fn point(&mut self, x: f64, y: f64, class: &str, tip: &str) {
        let ((x, y), tip) = (self.place(x, y), escape(tip));
        self.add(format_args!(
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"><title>{tip}</title></circle>"
        ));
    }

    /// A straight line of this CSS class.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let ((x1, y1), (x2, y2)) = (self.place(from.0, from.1), self.place(to.0, to.1));
        self.add(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    /// Points joined by lines, each with a tip.
    pub fn curve(&mut self, points: &[(f64, f64)], class: &str, name: &str) {
        for pair in points.windows(2) {
            self.line(pair[0], pair[1], class);
        }
        // So many points are a curve already.
        if points.len() <= 40 {
            for &(x, y) in points {
                self.point(x, y, class, &format!("{name}: {}, {}", number(x), number(y)));
            }
        }
    }

    /// The SVG element.
    #[must_use]
    pub fn finish(self) -> String {
        let (right, floor) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let mut axes = String::new();
        for (value, label) in self.x.ticks() {
            let x = LEFT + self.x.at(value) * (right - LEFT);
            let _ = write!(
                axes,
                "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{floor}\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
                floor + 14.0
            );
        }
        for (value, label) in self.y.ticks() {
            let y = floor - self.y.at(value) * (floor - TOP);
            let _ = write!(
                axes,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                LEFT - 6.0,
                y + 4.0
            );
        }
        let Self { title, body, x_label, y_label, .. } = self;
        let (center, middle, foot) =
            (f64::midpoint(LEFT, right), f64::midpoint(TOP, floor), HEIGHT - 8.0);
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n{axes}\n{body}\
             <text x=\"{center}\" y=\"{foot}\" text-anchor=\"middle\">{x_label}</text>\n\
             <text transform=\"rotate(-90 12 {middle})\" x=\"12\" y=\"{middle}\" \
             text-anchor=\"middle\">{y_label}</text>\n</svg>"
        )
    }
}
