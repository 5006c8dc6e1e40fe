//! Messages from a broker: the envelope, and the payload column.

use harness::{
    ConsumerName, DeadLetterId, Envelope, ErrorClass, Message, NewDeadLetter, QueueName, RESERVED_HEADERS, Reason,
    TraceParent, jsonb_text,
};
use serde_json::Value;
use uuid::Uuid;

/// Headers and a body, as any producer may send them.
pub fn envelope(bytes: &[u8]) {
    let queue = QueueName::new("points").expect("a name");
    let (headers, body) = crate::parts(bytes);
    let headers: std::collections::BTreeMap<_, _> = headers.into_iter().collect();
    let wire = |headers| Message::Wire {
        headers,
        body: body.to_vec(),
    };
    match Envelope::decode(&queue, wire(headers.clone())) {
        Ok(envelope) => {
            assert_eq!(envelope.body, body);
            let again = Envelope::decode(&queue, wire(envelope.wire_headers()));
            assert_eq!(again.as_ref(), Ok(&envelope), "it does not survive the wire");
            if let Some(trace) = envelope.trace() {
                assert_eq!(trace.to_string().parse::<TraceParent>(), Ok(trace));
            }
            replayed(&queue, &envelope);
        }
        Err(malformed) => {
            let error = malformed.error.to_string();
            let names = |it: &&str| error.contains(&format!("header {it:?}"));
            assert!(RESERVED_HEADERS.iter().any(|it| names(&it)), "it names no header: {error}");
            assert_eq!(malformed.body, body, "the body is lost");
            let kept: Vec<_> = headers.iter().map(|(k, v)| (k.clone(), Value::from(v.as_str()))).collect();
            assert_eq!(malformed.headers, Value::Object(kept.into_iter().collect()), "headers are lost");
            // The same message again is the same failure, however often it was tried.
            let mut tried = headers.clone();
            if tried.remove("attempts").is_some()
                && let Err(other) = Envelope::decode(&queue, wire(tried))
            {
                assert_eq!(other.job_id, malformed.job_id);
            }
            // And another body is another one.
            let mut longer = body.to_vec();
            longer.push(0);
            let other = Envelope::decode(&queue, Message::Wire { headers, body: longer });
            assert_ne!(other.expect_err("the headers are as bad").job_id, malformed.job_id);
        }
    }
}

/// What a replay of its dead letter publishes can be read, and is the same job.
fn replayed(queue: &QueueName, envelope: &Envelope) {
    let headers: serde_json::Map<_, _> = envelope.headers.iter().map(|(k, v)| (k.clone(), v.as_str().into())).collect();
    let letter = NewDeadLetter {
        id: DeadLetterId(Uuid::from_u128(1)),
        job_id: envelope.job_id,
        consumer: ConsumerName::new("awards").expect("a name"),
        queue: queue.clone(),
        tenant_id: envelope.tenant_id,
        correlation_id: envelope.correlation_id.clone(),
        generation: envelope.generation,
        reason: Reason::Hard,
        error_class: ErrorClass::of("fuzz"),
        attempts: 1,
        last_error: String::new(),
        payload: jsonb_text(&envelope.body),
        body: envelope.body.clone(),
        headers: Value::Object(headers).to_string(),
    };
    let replay = Envelope::replay_of(&letter);
    let (job, body, others) = (replay.job_id, &replay.body, &replay.headers);
    assert_eq!((job, body, others), (envelope.job_id, &envelope.body, &envelope.headers));
    assert_eq!((replay.generation, replay.attempts), (envelope.generation + 1, 0));
    let wire = Message::Wire {
        headers: replay.wire_headers(),
        body: replay.body.clone(),
    };
    match Envelope::decode(queue, wire) {
        Ok(read) => assert_eq!(read, replay),
        // The greatest generation that can be read has no next one.
        Err(error) => assert_eq!(envelope.generation, i32::MAX as u32 - 1, "{}", error.error),
    }
}

/// Any body: what the payload column holds is JSON, and either the body itself or an object that says why not.
pub fn payload(body: &[u8]) {
    let text = jsonb_text(body);
    let kept = text.as_bytes() == body;
    assert_eq!(jsonb_text(text.as_bytes()), text, "what it stands for cannot be held");
    if kept {
        return;
    }
    let value: Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(value["bytes"], body.len());
    assert!(value["unrepresentable"].is_string() && value["preview"].is_string(), "{text}");
    // Whatever JSON a reader takes in whole, without what JSONB cannot hold, is kept.
    if let Ok(plain) = serde_json::from_slice::<Value>(body) {
        let written = plain.to_string();
        let odd = written.contains("\\u0000") || body.len() > 1_000 || has_exponent(body);
        assert!(odd, "it could be held: {}", String::from_utf8_lossy(body));
    }
}

/// Numbers may be too large.
fn has_exponent(body: &[u8]) -> bool {
    body.windows(2).any(|two| two[0].is_ascii_digit() && two[1].eq_ignore_ascii_case(&b'e'))
}
