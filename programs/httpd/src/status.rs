//! The status codes of responses without a page (RFC 9110 section 15).

/// Why a request does not get a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The request is malformed, or its framing ambiguous.
    BadRequest,
    /// There is no such page.
    NotFound,
    /// Pages can be read only.
    MethodNotAllowed,
    /// The request did not come in time.
    RequestTimeout,
    /// The body is too long.
    ContentTooLarge,
    /// The request line is too long.
    UriTooLong,
    /// An expectation other than `100-continue`.
    ExpectationFailed,
    /// The head is longer, or has more fields, than we take.
    HeaderFieldsTooLarge,
    /// A method or transfer coding that we do not know.
    NotImplemented,
    /// Neither HTTP/1.0 nor HTTP/1.1.
    VersionNotSupported,
}

impl Status {
    /// All of them, in the order of their indices.
    pub const ALL: [Status; 10] = [
        Status::BadRequest,
        Status::NotFound,
        Status::MethodNotAllowed,
        Status::RequestTimeout,
        Status::ContentTooLarge,
        Status::UriTooLong,
        Status::ExpectationFailed,
        Status::HeaderFieldsTooLarge,
        Status::NotImplemented,
        Status::VersionNotSupported,
    ];

    /// Its place in [`Status::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Code and reason, as the status line and the body have them.
    pub fn text(self) -> &'static str {
        match self {
            Status::BadRequest => "400 Bad Request",
            Status::NotFound => "404 Not Found",
            Status::MethodNotAllowed => "405 Method Not Allowed",
            Status::RequestTimeout => "408 Request Timeout",
            Status::ContentTooLarge => "413 Content Too Large",
            Status::UriTooLong => "414 URI Too Long",
            Status::ExpectationFailed => "417 Expectation Failed",
            Status::HeaderFieldsTooLarge => "431 Request Header Fields Too Large",
            Status::NotImplemented => "501 Not Implemented",
            Status::VersionNotSupported => "505 HTTP Version Not Supported",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_places() {
        for (place, status) in Status::ALL.into_iter().enumerate() {
            assert_eq!(status.index(), place);
        }
    }
}
