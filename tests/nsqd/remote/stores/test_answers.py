"""Texts of obstore's exceptions, most of them as Ceph, Azurite and moto have caused them, shortened."""

from __future__ import annotations

import pytest

from nsqd.remote.object_store import StoreFaultKind
from nsqd.remote.stores.answers import fault_of, says_absent, says_beyond_end

PLACE = "s3://lake/nsq"
HEAD = "Generic S3 error: Error performing PUT http://10.0.0.7:9000/lake/nsq/x in 1.2ms - "


def answered(status: str, body: str = "") -> str:
    return f"{HEAD}Server returned non-2xx status code: {status}: {body}\n\nDebug source:\nGeneric {{ body: {body!r} }}"


def coded(status: str, code: str, message: str = "") -> str:
    body = f'<?xml version="1.0"?>\n<Error>\n <Code>{code}</Code><Message>{message}</Message><RequestId>1</RequestId></Error>'
    return answered(status, body)


def google_token(body: str) -> str:
    return f"Generic GCS error: Error performing token request: {answered('400 Bad Request', body)}"


def broken(causes: str) -> str:
    return f"{HEAD}HTTP error: error sending request\n\nDebug source:\nGeneric {{ inner: Http( HttpError {{ {causes} }} ) }}"


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        (
            coded("403 Forbidden", "InvalidAccessKeyId"),
            StoreFaultKind.DENIED,
            "the store doesn't know this access key: correct AWS_ACCESS_KEY_ID (InvalidAccessKeyId)",
        ),
        (
            coded("403 Forbidden", "SignatureDoesNotMatch", "The request signature does not match."),
            StoreFaultKind.DENIED,
            "the secret key is wrong: correct AWS_SECRET_ACCESS_KEY (SignatureDoesNotMatch: The request signature does not match)",
        ),
        (
            coded("403 Forbidden", "AccessDenied", "Access Denied"),
            StoreFaultKind.DENIED,
            "these credentials don't allow it: they need to get, put, delete and list objects here "
            "(AccessDenied: Access Denied)",
        ),
        (
            coded("400 Bad Request", "ExpiredToken", "The provided token has expired."),
            StoreFaultKind.DENIED,
            "the session token has expired (ExpiredToken: The provided token has expired)",
        ),
        (
            coded("404 Not Found", "NoSuchBucket", ""),
            StoreFaultKind.MISSING,
            "there is no bucket of this name: create it, or correct the URL (NoSuchBucket)",
        ),
        (
            coded("404 Not Found", "ContainerNotFound", "The specified container does not exist.\nRequestId:6"),
            StoreFaultKind.MISSING,
            "there is no container of this name: create it, or correct the URL (ContainerNotFound: The specified container does not exist)",
        ),
        (
            'Object at location x not found: Bulk delete request failed for key x: The specified container does not exist. (code: 404)\n\nDebug source:\nNotFound { code: "404" }',
            StoreFaultKind.MISSING,
            "there is no container of this name: create it, or correct the URL",
        ),
        (
            coded(
                "403 Forbidden",
                "RequestTimeTooSkewed",
                "The difference is too large.</Message><ServerTime>2026-11-28T02:50:12Z</ServerTime><Message>",
            ),
            StoreFaultKind.CLOCK,
            "the store refuses requests because this machine's clock is off: set it, by NTP for example "
            "(RequestTimeTooSkewed: The difference is too large; its clock says 2026-11-28T02:50:12Z)",
        ),
        (
            coded("403 Forbidden", "AuthenticationFailed", "Server failed to authenticate the request.")
            + "<AuthenticationErrorDetail>Request date header too old: 'Sat, 28 Nov 2026 01:00:00 GMT'",
            StoreFaultKind.CLOCK,
            "the store refuses requests because this machine's clock is off: set it, by NTP for example "
            "(AuthenticationFailed: Server failed to authenticate the request)",
        ),
        (
            coded("403 Forbidden", "AuthorizationFailure", "Server failed to authenticate the request."),
            StoreFaultKind.DENIED,
            "the account's key or token is wrong (AuthorizationFailure: Server failed to authenticate the request)",
        ),
        (
            coded("503 Service Unavailable", "SlowDown", "Please reduce your request rate."),
            StoreFaultKind.BUSY,
            "the store asks for fewer requests (SlowDown: Please reduce your request rate)",
        ),
        (answered("429 Too Many Requests"), StoreFaultKind.BUSY, "the store asks for fewer requests (status 429)"),
        (answered("503 Service Unavailable"), StoreFaultKind.BUSY, "the store asks for fewer requests (status 503)"),
        (
            coded("500 Internal Server Error", "InternalError", "We encountered an internal error."),
            StoreFaultKind.OTHER,
            "the store has failed (InternalError: We encountered an internal error)",
        ),
        (answered("502 Bad Gateway", "<html>nginx</html>"), StoreFaultKind.OTHER, "the store has failed (status 502)"),
        (
            coded("403 Forbidden", "QuotaExceeded"),
            StoreFaultKind.FULL,
            "the quota is used up (QuotaExceeded)",
        ),
        (
            answered("413 Request Entity Too Large", "<html>nginx</html>"),
            StoreFaultKind.OTHER,
            "an object of 8 MiB is too large for the store (status 413)",
        ),
        (
            answered("404 Not Found", "<html>nginx</html>"),
            StoreFaultKind.MISSING,
            "this is no answer of an object store: is the endpoint right? (status 404)",
        ),
        (
            coded("400 Bad Request", "AuthorizationHeaderMalformed", "the region 'a' is wrong; expecting 'b'"),
            StoreFaultKind.OTHER,
            "the bucket is in another region: name it by --remote-option=region=REGION "
            "(AuthorizationHeaderMalformed: the region 'a' is wrong; expecting 'b')",
        ),
        (
            broken('kind: Connect, "tcp connect error", 10.0.0.7:9000, Os { code: 111, kind: ConnectionRefused }'),
            StoreFaultKind.UNREACHABLE,
            "nothing listens there: the connection was refused",
        ),
        (
            broken('kind: Connect, ConnectError( "dns error", "failed to lookup address information"'),
            StoreFaultKind.UNREACHABLE,
            "the name of the store's host is unknown",
        ),
        (
            broken("kind: Timeout, source: reqwest::Error { kind: Request, source: TimedOut }"),
            StoreFaultKind.UNREACHABLE,
            "no answer in time",
        ),
        (broken("hyper::Error( IncompleteMessage )"), StoreFaultKind.UNREACHABLE, "it broke the connection"),
        (
            broken("invalid peer certificate: UnknownIssuer"),
            StoreFaultKind.UNREACHABLE,
            "its certificate isn't trusted here",
        ),
        (
            "Generic GCS error: Error performing token request: Error performing GET http://169.254.169.254/computeMetadata/v1/token?audience=x in 1ms - HTTP error",
            StoreFaultKind.DENIED,
            "there are no credentials: the environment has none, and no cloud gives any to this machine",
        ),
        (
            google_token('{"error":"invalid_grant","error_description":"Invalid JWT Signature."}'),
            StoreFaultKind.DENIED,
            "the service account's key is wrong, or this machine's clock is off (invalid_grant)",
        ),
        (
            google_token('{"error":"invalid_grant","error_description":"Invalid JWT: not in a reasonable timeframe"}'),
            StoreFaultKind.CLOCK,
            "the store refuses requests because this machine's clock is off: set it, by NTP for example (invalid_grant)",
        ),
        (
            "Generic MicrosoftAzure error: Account must be specified\n\nDebug source:\nGeneric { source: MissingAccount }",
            StoreFaultKind.DENIED,
            "there is no account: name it by --remote-option=account_name=NAME",
        ),
    ],
)
def test_an_operator_reads_what_to_mend(text: str, kind: StoreFaultKind, expected: str) -> None:
    fault = fault_of(text, PLACE)
    assert str(fault) == f"{PLACE}: {expected}"
    assert fault.kind is kind


def test_a_text_that_no_pattern_knows_is_shown_in_one_line_without_signatures() -> None:
    text = "Generic MicrosoftAzure error: GET https://a.blob.example/lake?sig=secret&se=1\n went\n wrong\n\nDebug source:\nX {"
    assert str(fault_of(text, PLACE)) == (
        f"{PLACE}: Generic MicrosoftAzure error: GET https://a.blob.example/lake went wrong"
    )


def test_a_text_without_end_is_cut() -> None:
    assert len(str(fault_of("x" * 10_000, PLACE))) < 400
    assert len(str(fault_of(coded("403", "AccessDenied", "y" * 10_000), PLACE))) < 500


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (coded("404 Not Found", "NoSuchKey", "The specified key does not exist."), True),
        (coded("404 Not Found", "BlobNotFound"), True),
        (coded("404 Not Found", "NoSuchBucket"), False),
        (coded("404 Not Found", "ResourceNotFound"), False),
        (answered("404 Not Found", "<html>nginx</html>"), False),
        (answered("404 Not Found"), False),
    ],
)
def test_only_a_store_can_say_that_an_object_is_absent(text: str, expected: bool) -> None:
    assert says_absent(text) is expected


def test_a_range_beyond_the_end() -> None:
    assert says_beyond_end(coded("416 Range Not Satisfiable", "InvalidRange"))
    assert says_beyond_end(
        "Wanted range starting at 6\n\nDebug source:\nGeneric { source: StartTooLarge { length: 6 } }"
    )
    assert not says_beyond_end(coded("404 Not Found", "NoSuchKey"))
