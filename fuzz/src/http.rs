//! What clients send: parameters of the list, cursors, signed tokens, whole requests.

use std::fmt::Write as _;

use axum::body::Body;
use axum::http::{Method, Request};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use crate::api::{Answer, TOKEN, ask, letters, list};
use crate::tokens;

/// Any bytes as a part of an address: what may not be in one is escaped.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'&' | b'=' | b'%' | b'+' | b'-' | b'_' | b'.' | b'~' | b':' | b','
            | b'/' | b'*' | b'!' | b';' | b'@' | b'$' | b'(' | b')' | b'?' => text.push(char::from(*byte)),
            _ => {
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    text
}

fn field_of(answer: &Answer) -> String {
    assert_eq!(answer.status, 422, "{}", String::from_utf8_lossy(&answer.body));
    let problem = answer.json();
    assert!(problem["detail"].as_str().is_some_and(|it| !it.is_empty()), "{problem}");
    problem["field"].as_str().expect("the problem names a field").to_owned()
}

fn ids(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().expect("a list");
    items.iter().map(|it| it["id"].as_str().expect("an id").to_owned()).collect()
}

/// Parameters of the list: refused by name, or a list whose pages together are every letter that fits, each once, in order.
pub fn query(bytes: &[u8]) {
    // Above this length an address is refused before it is looked at.
    let text = escaped(&bytes[..bytes.len().min(4_096)]);
    let (answer, asked) = list(&text);
    let sent: Vec<String> = form_urlencoded::parse(text.as_bytes()).map(|(name, _)| name.into_owned()).collect();
    if answer.status != 200 {
        let field = field_of(&answer);
        assert!(sent.contains(&field), "{field:?} was not sent: {text}");
        return;
    }
    let asked = asked.expect("the store was asked");
    if asked.after.is_some() {
        return;
    }
    let (fitting, limit) = (letters(), asked.limit - 1);
    let mut expected: Vec<_> = fitting.iter().filter(|it| asked.filter.fits(it)).collect();
    expected.sort_by_key(|it| (it.created_at, it.letter.id));
    if asked.order == harness::LetterOrder::NewestFirst {
        expected.reverse();
    }
    let expected: Vec<String> = expected.iter().map(|it| it.letter.id.to_string()).collect();
    let (mut page, mut seen) = (answer.json(), Vec::new());
    loop {
        let items = ids(&page);
        assert!(items.len() <= limit as usize, "more than {limit}");
        seen.extend(items);
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        assert!(seen.len() <= expected.len(), "it goes on and on");
        let (next, _) = list(&format!("{text}&cursor={cursor}"));
        assert_eq!(next.status, 200, "its own cursor is refused: {}", String::from_utf8_lossy(&next.body));
        page = next.json();
    }
    assert_eq!(seen, expected, "{text}");
}

/// The first byte chooses a list, the rest is a cursor: a text, or changes to a good cursor's bytes. It is refused by name
/// unless it is one of this list.
pub fn cursor(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let lists = ["order=oldest", "order=newest", "status=replayed&order=oldest", "error_contains=timeout"];
    let one = format!("{}&limit=1", lists[usize::from(choice % 4)]);
    let (first, _) = list(&one);
    let good = first.json()["next_cursor"].as_str().expect("there is more").to_owned();
    let good_bytes = URL_SAFE_NO_PAD.decode(&good).expect("base64");
    let text = match choice & 4 {
        0 => escaped(rest).replace('&', "%26"),
        _ => {
            let mut changed = good_bytes.clone();
            for (n, byte) in rest.iter().enumerate() {
                match changed.get_mut(n) {
                    Some(it) => *it ^= byte,
                    None => changed.push(*byte),
                }
            }
            URL_SAFE_NO_PAD.encode(changed)
        }
    };
    let (answer, asked) = list(&format!("{one}&cursor={text}"));
    if answer.status != 200 {
        assert_eq!(field_of(&answer), "cursor");
        return;
    }
    let read = URL_SAFE_NO_PAD.decode(&text).expect("a cursor of another form was taken");
    assert_eq!((read.len(), &read[..9]), (good_bytes.len(), &good_bytes[..9]), "a cursor of another list was taken");
    let after = asked.and_then(|asked| asked.after).expect("the store was asked for what follows");
    assert_eq!(after.created_at.timestamp_micros().to_be_bytes(), read[9..17]);
    assert_eq!(after.id.0.as_bytes(), &read[17..]);
}

/// Signed tokens: see [`tokens`].
pub fn jwt(bytes: &[u8]) {
    let token = tokens::token(bytes);
    let request = Request::get("/v1/core/dead-letters").header("authorization", format!("Bearer {}", token.text));
    // What cannot be in a header is no token.
    let Ok(request) = request.body(Body::empty()) else { return };
    let answer = ask(request);
    match answer.status {
        200 => assert!(token.may_be_good(), "it was taken: {}", token.text),
        401 | 403 => {
            let challenge = answer.response.headers().get("www-authenticate");
            assert!(challenge.is_some_and(|it| it.as_bytes().starts_with(b"Bearer")), "no challenge");
            let problem = answer.json();
            let detail = problem["detail"].as_str().expect("it says what is wrong");
            // Nobody learns from guesses.
            let of_claims = ["iss", "aud", "exp", "nbf", "sub"].iter().any(|it| detail.contains(&format!("({it})")));
            assert!(token.signed || !of_claims, "it tells about claims: {detail}");
        }
        other => panic!("{other}: {}", String::from_utf8_lossy(&answer.body)),
    }
    assert!(!token.must_be_good() || answer.status != 401, "it was refused: {}", String::from_utf8_lossy(&answer.body));
}

/// A whole request: a line with method and address, headers, an empty line, the body.
pub fn request(bytes: &[u8]) {
    let (line, rest) = match bytes.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[][..]),
    };
    let (method, address) = match line.iter().position(|byte| *byte == b' ') {
        Some(at) => (&line[..at], &line[at + 1..]),
        None => (&b"GET"[..], line),
    };
    let Ok(method) = Method::from_bytes(method) else { return };
    let (headers, body) = match rest.strip_prefix(b"\n") {
        Some(body) => (Vec::new(), body),
        None => crate::parts(rest),
    };
    let mut request = Request::builder().method(method.clone()).uri(format!("/{}", escaped(address.strip_prefix(b"/").unwrap_or(address))));
    for (name, value) in &headers {
        request = request.header(name, value);
    }
    let Ok(request) = request.body(Body::from(body.to_vec())) else { return };
    let path = request.uri().path().to_owned();
    let known: Vec<_> = request.headers().get_all("authorization").iter().cloned().collect();
    let known = matches!(&known[..], [one] if one.to_str().is_ok_and(|it| it.trim_ascii_end().ends_with(TOKEN)));
    let answer = ask(request);
    assert!(answer.status < 500, "{}: {}", answer.status, String::from_utf8_lossy(&answer.body));
    assert!(answer.response.headers().contains_key("x-request-id"));
    let done = (200..300).contains(&answer.status);
    assert!(!done || !path.starts_with("/v1/") || known, "{path} was answered to a stranger");
    if answer.status >= 400 && method != Method::HEAD {
        let problem = answer.json();
        assert_eq!(problem["status"], answer.status);
        assert!(problem["detail"].as_str().is_some_and(|it| !it.is_empty()), "{problem}");
        assert!(problem["type"].as_str().is_some_and(|it| it.starts_with("urn:job-harness:problem:")), "{problem}");
    }
}
