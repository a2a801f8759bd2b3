//! The look by which a curve is told from others: its colour, its mark and its dashes.

use ratatui_core::style::Color;

/// The look of one curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Look {
    /// Red, green and blue.
    pub rgb: (u8, u8, u8),
    /// The nearest colour that a terminal's own palette has.
    pub ansi: Color,
    /// The mark in images.
    pub shape: Shape,
    /// The dashes of its line in images: the pixels that are drawn, and those that are left out, in
    /// turn; `None` for a line without gaps.
    pub dash: Option<(u32, u32)>,
    /// The mark in text.
    pub symbol: char,
}

/// A mark in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Circle,
    Square,
    Triangle,
    Diamond,
    Cross,
}

/// The palette of Okabe and Ito ("Color Universal Design", 2008), which stays distinct for
/// colour-blind readers. Its black is grey here, to be visible on light and on dark; its yellow,
/// faint on white, comes last.
const COLOURS: [((u8, u8, u8), Color); 8] = [
    ((0x00, 0x72, 0xb2), Color::Blue),
    ((0xd5, 0x5e, 0x00), Color::Red),
    ((0x00, 0x9e, 0x73), Color::Green),
    ((0xcc, 0x79, 0xa7), Color::Magenta),
    ((0xe6, 0x9f, 0x00), Color::Yellow),
    ((0x56, 0xb4, 0xe9), Color::Cyan),
    ((0x80, 0x80, 0x80), Color::DarkGray),
    ((0xf0, 0xe4, 0x42), Color::LightYellow),
];
/// Where colours repeat, lines differ.
const DASHES: [Option<(u32, u32)>; 3] = [None, Some((9, 4)), Some((3, 3))];
// Five shapes and eight colours have no common divisor: forty curves differ.
const SHAPES: [Shape; 5] = [Shape::Circle, Shape::Square, Shape::Triangle, Shape::Diamond, Shape::Cross];
// The first five are the shapes.
const SYMBOLS: [char; 12] = ['●', '■', '▲', '◆', '+', '○', '□', '△', '◇', '×', '▼', '▽'];

/// Half the length of a piece of line in a legend, in pixels.
pub(crate) const PIECE: u32 = 16;

impl Look {
    /// The look of the curve at `index` of [`curve_names`](crate::figure::Figure::curve_names).
    pub fn of(index: usize) -> Self {
        let (rgb, ansi) = COLOURS[index % COLOURS.len()];
        Self {
            rgb,
            ansi,
            shape: SHAPES[index % SHAPES.len()],
            dash: DASHES[index / COLOURS.len() % DASHES.len()],
            symbol: SYMBOLS[index % SYMBOLS.len()],
        }
    }

    /// The look of the curve called `name`, if `names` are all names.
    pub fn named(names: &[&str], name: &str) -> Self {
        Self::of(place(names, name))
    }

    /// A piece of a curve with its mark, for legends: a path to fill in SVG, around (0, 0).
    pub fn path(&self) -> String {
        let (drawn, left_out) = self.dash.unwrap_or((2 * PIECE, 0));
        // A dash in the middle, under the mark, and others to both sides.
        let every = (drawn + left_out).cast_signed();
        let places = -PIECE.cast_signed() / every..=PIECE.cast_signed() / every;
        let half = f64::from(drawn) / 2.0;
        places.fold(self.shape.path().to_owned(), |path, place| {
            let (from, to) = (f64::from(place * every) - half, f64::from(place * every) + half);
            let (from, to) = (from.max(-f64::from(PIECE)), to.min(f64::from(PIECE)));
            path + &format!("M{from}-1H{to}V1H{from}z")
        })
    }

    /// The colour as `#rrggbb`.
    pub fn hex(&self) -> String {
        let (r, g, b) = self.rgb;
        format!("#{r:02x}{g:02x}{b:02x}")
    }
}

impl Shape {
    /// The shape's name in Vega.
    pub fn vega(self) -> &'static str {
        match self {
            Self::Circle => "circle",
            Self::Square => "square",
            Self::Triangle => "triangle-up",
            Self::Diamond => "diamond",
            Self::Cross => "cross",
        }
    }

    /// The shape around (0, 0) as a path to fill in SVG, about ten pixels wide.
    fn path(self) -> &'static str {
        match self {
            Self::Circle => "M-4.5 0a4.5 4.5 0 1 1 9 0a4.5 4.5 0 1 1-9 0",
            Self::Square => "M-4-4h8v8h-8z",
            Self::Triangle => "M0-5L5 4h-10z",
            Self::Diamond => "M0-5L5 0L0 5L-5 0z",
            Self::Cross => "M-2-5h4v3h3v4h-3v3h-4v-3h-3v-4h3z",
        }
    }
}

/// The place of `name` in `names`.
pub(crate) fn place(names: &[&str], name: &str) -> usize {
    names.iter().position(|other| *other == name).unwrap_or_default()
}

/// The points of a curve that carry a mark, by index, if about `room` marks fit side by side.
/// Curves start at different points, so that curves on top of each other all show.
pub(crate) fn marked(points: usize, room: usize, curve: usize) -> impl Iterator<Item = usize> {
    let stride = points.div_ceil(room.max(1)).max(1);
    (curve % stride..points).step_by(stride)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forty_curves_look_different_in_images_and_twelve_in_text() {
        for a in 0..40 {
            for b in 0..a {
                let (a, b) = (Look::of(a), Look::of(b));
                assert!((a.rgb, a.shape) != (b.rgb, b.shape), "{a:?} {b:?}");
            }
        }
        for index in 0..24 {
            let (look, repeats) = (Look::of(index), (0..index).map(Look::of));
            assert!(
                repeats.into_iter().all(|other| (other.rgb, other.dash) != (look.rgb, look.dash)),
                "{index}"
            );
        }
        let symbols: std::collections::BTreeSet<char> = (0..12).map(|i| Look::of(i).symbol).collect();
        assert_eq!(symbols.len(), 12);
    }

    #[test]
    fn marks_are_thinned_to_the_room_and_staggered() {
        assert_eq!(marked(3, 10, 1).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(marked(9, 3, 0).collect::<Vec<_>>(), [0, 3, 6]);
        assert_eq!(marked(9, 3, 4).collect::<Vec<_>>(), [1, 4, 7]);
        assert_eq!(marked(0, 0, 7).count(), 0);
    }
}
