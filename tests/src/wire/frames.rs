//! Where messages of PostgreSQL's protocol (version 3) begin and end.

use tokio::io::{AsyncRead, AsyncReadExt};

/// No message of a test is longer; a longer one means that we have lost our place.
const LONGEST: usize = 64 << 20;

const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

/// One message, with its head.
#[derive(Debug)]
pub(super) struct Frame {
    /// The type; none for what a client says first.
    pub(super) tag: Option<u8>,
    pub(super) bytes: Vec<u8>,
}

impl Frame {
    /// Reads one message; none at the end of the stream.
    pub(super) async fn read(
        from: &mut (impl AsyncRead + Unpin),
        tagged: bool,
    ) -> std::io::Result<Option<Self>> {
        let head = if tagged { 5 } else { 4 };
        let mut bytes = vec![0; head];
        if from.read(&mut bytes[..1]).await? == 0 {
            return Ok(None);
        }
        from.read_exact(&mut bytes[1..]).await?;
        let tag = tagged.then_some(bytes[0]);
        let mut length = [0; 4];
        length.copy_from_slice(&bytes[head - 4..]);
        // The length counts itself, and not the type.
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(LONGEST);
        let body = length.checked_sub(4).filter(|body| *body < LONGEST);
        let body = body.ok_or_else(|| std::io::Error::other("no message has this length"))?;
        bytes.resize(head + body, 0);
        from.read_exact(&mut bytes[head..]).await?;
        Ok(Some(Self { tag, bytes }))
    }

    /// Asks for encryption, which the server answers with one byte that is no message.
    pub(super) fn asks_for_encryption(&self) -> bool {
        let code = self.bytes.get(4..8).and_then(|code| code.try_into().ok());
        let code = code.map(u32::from_be_bytes);
        self.tag.is_none() && matches!(code, Some(SSL_REQUEST | GSS_REQUEST))
    }

    /// For people: the type, and what can be read of it.
    pub(super) fn told(&self) -> String {
        let Some(tag) = self.tag else {
            return "startup".to_owned();
        };
        let body = self.bytes.get(5..).unwrap_or_default();
        let readable: String = String::from_utf8_lossy(body)
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .take(200)
            .collect();
        format!("{} {}", char::from(tag), readable.trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(mut bytes: &[u8], tagged: bool) -> std::io::Result<Vec<Frame>> {
        let mut frames = Vec::new();
        while let Some(frame) = Frame::read(&mut bytes, tagged).await? {
            frames.push(frame);
        }
        Ok(frames)
    }

    #[tokio::test]
    async fn messages_are_taken_apart_and_nothing_is_lost() {
        let wire = b"Q\0\0\0\x0dSELECT 1\0S\0\0\0\x04C\0\0\0\x0bCOMMIT\0";
        let frames = all(wire, true).await.unwrap();
        let tags: Vec<_> = frames.iter().filter_map(|it| it.tag).collect();
        assert_eq!(tags, b"QSC");
        assert_eq!(
            frames
                .iter()
                .flat_map(|it| it.bytes.clone())
                .collect::<Vec<_>>(),
            wire
        );
        assert_eq!(frames[2].told(), "C COMMIT");
    }

    #[tokio::test]
    async fn a_stream_that_is_none_is_an_error() {
        for broken in [
            &b"Q\0\0\0\x03"[..],
            b"Q\xff\xff\xff\xff",
            b"Q\0\0\0\x0dSEL",
            b"Q\0",
        ] {
            assert!(all(broken, true).await.is_err(), "{broken:?}");
        }
    }

    #[tokio::test]
    async fn a_request_for_encryption_is_seen() {
        let frames = all(b"\0\0\0\x08\x04\xd2\x16\x2f", false).await.unwrap();
        assert!(frames[0].asks_for_encryption());
        let frames = all(b"\0\0\0\x08\x00\x03\x00\x00", false).await.unwrap();
        assert!(!frames[0].asks_for_encryption());
    }
}
