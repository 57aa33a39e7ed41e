//! What went wrong with TLS, in words.

use std::io;

use rustls::{AlertDescription, CertificateError};

/// Explains a failure of TLS and what can be done about it.
pub(super) fn explained(error: &rustls::Error) -> io::Error {
    use AlertDescription as Alert;
    use CertificateError as Certificate;
    use rustls::Error as Tls;
    let why = match error {
        Tls::InvalidCertificate(certificate) => match certificate {
            Certificate::Expired | Certificate::ExpiredContext { .. } => "its certificate has expired".to_owned(),
            Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => {
                "its certificate is not valid yet; is the clock right?".to_owned()
            }
            Certificate::UnknownIssuer => "its certificate is not from an authority in ca-cert.pem".to_owned(),
            Certificate::Revoked => "its certificate has been revoked".to_owned(),
            Certificate::ExpiredRevocationList | Certificate::ExpiredRevocationListContext { .. } => {
                "the list in ca-crl.pem is out of date".to_owned()
            }
            Certificate::NotValidForNameContext { presented, .. } if presented.is_empty() => {
                "its certificate has no subjectAltName (the common name is not used)".to_owned()
            }
            Certificate::NotValidForNameContext { expected, presented } => {
                format!("its certificate is for {}, not for {}", presented.join(", "), expected.to_str())
            }
            Certificate::InvalidPurpose | Certificate::InvalidPurposeContext { .. } => {
                "its certificate is for another purpose (extendedKeyUsage)".to_owned()
            }
            other => format!("its certificate cannot be accepted: {other}"),
        },
        Tls::NoCertificatesPresented => "it sent no certificate".to_owned(),
        Tls::AlertReceived(alert) => match alert {
            Alert::CertificateRequired => {
                return refused("the peer requires a certificate (client-cert.pem and client-key.pem)");
            }
            Alert::UnknownCA => {
                return refused("the peer does not trust our certificate's authority");
            }
            Alert::CertificateExpired => return refused("the peer says that our certificate has expired"),
            Alert::CertificateRevoked => return refused("the peer says that our certificate has been revoked"),
            Alert::UnsupportedCertificate
            | Alert::BadCertificate
            | Alert::DecryptError
            | Alert::AccessDenied
            | Alert::CertificateUnknown => {
                return refused("the peer does not accept our certificate, or requires one");
            }
            Alert::HandshakeFailure | Alert::InsufficientSecurity => {
                return refused(
                    "no common TLS parameters with the peer; it may require a certificate or a pre-shared key (not \
                     supported)",
                );
            }
            alert => return refused(&format!("the peer ended the connection: {alert:?}")),
        },
        Tls::PeerIncompatible(why) => format!("no common TLS parameters: {why:?}"),
        other => return io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {other}")),
    };
    refused(&format!("the peer was refused: {why}"))
}

/// What was refused, or by whom.
pub(super) fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("TLS: {why}"))
}
