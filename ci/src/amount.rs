//! Amounts as people read them.

/// An amount for a narrow cell: `12`, `3.8k`, `2.6M`.
#[allow(clippy::cast_precision_loss)] // for people
pub fn short(amount: u64) -> String {
    match amount {
        0..=9_999 => amount.to_string(),
        10_000..=999_999 => format!("{:.0}k", amount as f64 / 1e3),
        _ => format!("{:.1}M", amount as f64 / 1e6),
    }
}

/// The same with its unit: `1 test`, `12 tests`.
pub fn counted(amount: u64, unit: &str) -> String {
    let unit = match amount {
        1 => unit.strip_suffix('s').unwrap_or(unit),
        _ => unit,
    };
    format!("{} {unit}", short(amount))
}
