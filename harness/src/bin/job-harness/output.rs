//! Printing: for people, or for programs.

use std::io::{self, Write};

use clap::ValueEnum;

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One JSON document per line.
    Json,
}

/// Standard output, without colours where nobody wants them (`NO_COLOR`, no terminal).
pub(crate) fn out() -> impl Write {
    anstream::stdout()
}

/// Text from elsewhere, made harmless for a terminal: what is in an error or a payload must not move the cursor.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// At most so many characters.
pub(crate) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    kept + "…"
}

/// Columns as wide as they must be; the last one is not padded.
pub(crate) fn table(out: &mut impl Write, rows: &[Vec<String>]) -> io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            let pad = width - cell.chars().count() + 2;
            line.extend(std::iter::repeat_n(' ', pad));
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_elsewhere_steers_the_terminal() {
        assert_eq!(
            printable("a\u{1b}[2Jb\r\n\u{9b}c é"),
            "a\\u{1b}[2Jb\\r\\n\\u{9b}c é"
        );
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(cut("äöüß", 3), "äö…");
        assert_eq!(cut("äöü", 3), "äöü");
    }
}
