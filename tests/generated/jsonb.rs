//! What `jsonb_text` says that JSONB can hold, JSONB holds.

use acceptance::db::Db;
use harness::jsonb_text;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};

/// Text of what may be difficult: escapes, numbers, nesting, and bytes that are nothing.
fn bodies() -> impl Strategy<Value = Vec<u8>> {
    let string = prop_oneof![
        Just(r#""\u0000""#.to_owned()),
        Just(r#""\\u0000""#.to_owned()),
        any::<u16>().prop_map(|unit| format!("\"\\u{unit:04x}\"")),
        (0xd800..0xdc00_u16, 0xdc00..0xe000_u16)
            .prop_map(|(high, low)| format!("\"\\u{high:04x}\\u{low:04x}\"")),
        any::<String>().prop_map(|text| serde_json::json!(text).to_string()),
    ];
    let number = prop_oneof![
        "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,40})?([eE][-+]?[0-9]{1,4})?",
        Just("9".repeat(999)),
        Just(format!("1.{}1", "0".repeat(990))),
    ];
    let leaf = prop_oneof![
        string.clone(),
        number,
        Just("null".to_owned()),
        Just(" true ".to_owned())
    ];
    let value = leaf.prop_recursive(4, 30, 5, move |inner| {
        let member =
            (string.clone(), inner.clone()).prop_map(|(name, value)| format!("{name}: {value}"));
        prop_oneof![
            proptest::collection::vec(inner, 0..5)
                .prop_map(|items| format!("[{}]", items.join(","))),
            proptest::collection::vec(member, 0..5)
                .prop_map(|members| format!("{{{}}}", members.join(","))),
        ]
    });
    let deep = (0..700_usize).prop_map(|depth| "[".repeat(depth) + "1" + &"]".repeat(depth));
    prop_oneof![
        6 => value.prop_map(String::into_bytes),
        1 => deep.prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
    ]
}

#[test]
fn b4_every_payload_can_be_stored() {
    let runtime = crate::runtime();
    let db = runtime.block_on(Db::fresh());
    let outcome = TestRunner::new(crate::config(400)).run(&bodies(), |body| {
        let text = jsonb_text(&body);
        let stored = sqlx::query_scalar::<_, i32>("SELECT length($1::jsonb::text)")
            .bind(text)
            .fetch_one(&db.pool);
        let stored = runtime.block_on(stored);
        stored
            .map(drop)
            .map_err(|error| TestCaseError::fail(error.to_string()))
    });
    outcome.unwrap();
    // `Db` wants a runtime to go away in.
    drop(db);
}
