//! Figures as text: every table, axis and line of progress writes its numbers with these.

/// A count in at most five characters, three of them digits: `950`, `12.3k`, `4.56M`.
pub fn count(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v < 999.5 => return format!("{value:.0}"),
        v if v < 999_500.0 => (value / 1e3, "k"),
        v if v < 999_500_000.0 => (value / 1e6, "M"),
        v if v < 999.5e9 => (value / 1e9, "G"),
        _ => (value / 1e12, "T"),
    };
    let decimals = match scaled.abs() {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.decimals$}{unit}")
}

/// For an axis: `1.5M`, `20k`, `5000`, `0.25`.
pub fn tick(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    format!("{}{unit}", significant(scaled, 3))
}

/// Three significant digits at least, thousands apart by `gap`.
pub fn full(value: f64, gap: char) -> String {
    match value.abs() >= 100.0 {
        true => grouped(&format!("{value:.0}"), gap),
        false => significant(value, 3),
    }
}

/// With this number of decimals, thousands apart by a space: `1 234 567.8`, `1234`.
pub fn fixed(value: f64, decimals: usize) -> String {
    grouped(&format!("{value:.decimals$}"), ' ')
}

/// Groups of three digits; four digits stay together (ISO 80000-1).
fn grouped(text: &str, gap: char) -> String {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let (whole, rest) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    let mut grouped = String::from(sign);
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 && whole.len() > 4 {
            grouped.push(gap);
        }
        grouped.push(digit);
    }
    grouped + rest
}

/// At most this many significant digits, without zeros at the end.
fn significant(value: f64, digits: i32) -> String {
    let magnitude = value.abs().max(1e-12).log10().floor() as i32;
    let decimals = (digits - 1 - magnitude).clamp(0, 9) as usize;
    let text = format!("{value:.decimals$}");
    let trimmed = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    if trimmed == "-0" { "0".to_owned() } else { trimmed.to_owned() }
}

/// Microseconds, with a digit behind the point below ten of them.
pub fn micros(value: f64) -> String {
    let decimals = usize::from(value < 9.95);
    format!("{value:.decimals$}")
}

/// A share in percent, with this number of decimals: `12.5%`.
pub fn percent(share: f64, decimals: usize) -> String {
    format!("{:.decimals$}%", share * 100.0)
}

/// `1 thread`, `2 threads`.
pub fn plural(n: usize, word: &str) -> String {
    if n == 1 { format!("1 {word}") } else { format!("{n} {word}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_ones_have_five_characters() {
        for (value, text) in [
            (0.0, "0"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (9_994.0, "9.99k"),
            (9_996.0, "10.0k"),
            (12_345.0, "12.3k"),
            (123_456.0, "123k"),
            (999_600.0, "1.00M"),
            (4_560_000.0, "4.56M"),
            (7.8e12, "7.80T"),
        ] {
            assert_eq!(count(value), text);
        }
        assert_eq!([micros(0.04), micros(9.94), micros(9.96)], ["0.0", "9.9", "10"]);
        assert_eq!([percent(0.125, 1), percent(1.0, 0)], ["12.5%", "100%"]);
    }

    #[test]
    fn long_ones_keep_what_matters() {
        for (value, axis, table) in [
            (0.0, "0", "0"),
            (0.123_456, "0.123", "0.123"),
            (999.0, "999", "999"),
            (5_000.0, "5000", "5000"),
            (20_000.0, "20k", "20_000"),
            (1_234_567.0, "1.23M", "1_234_567"),
            (-20_000.0, "-20k", "-20_000"),
        ] {
            assert_eq!((tick(value).as_str(), full(value, '_').as_str()), (axis, table));
        }
        let fixed = [(1_234_567.8, 1), (123.0, 0), (-1234.0, 0)].map(|(v, n)| fixed(v, n));
        assert_eq!(fixed, ["1 234 567.8", "123", "-1234"]);
    }
}
