//! Encoded object identifiers.

/// rsaEncryption (RFC 8017, A.1).
pub const RSA: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01";
/// sha256WithRSAEncryption.
pub const SHA256_WITH_RSA: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0b";
/// id-ecPublicKey (RFC 5480).
pub const EC: &[u8] = b"\x2a\x86\x48\xce\x3d\x02\x01";

/// Hashes, by the identifiers that MACs use (RFC 8017, B.1).
pub const SHA1: &[u8] = b"\x2b\x0e\x03\x02\x1a";
pub const SHA256: &[u8] = b"\x60\x86\x48\x01\x65\x03\x04\x02\x01";
pub const SHA384: &[u8] = b"\x60\x86\x48\x01\x65\x03\x04\x02\x02";
pub const SHA512: &[u8] = b"\x60\x86\x48\x01\x65\x03\x04\x02\x03";

/// PBES2, PBKDF2, PBMAC1, scrypt (RFC 8018, A; RFC 7914, 7).
pub const PBES2: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x05\x0d";
pub const PBKDF2: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x05\x0c";
pub const PBMAC1: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x05\x0e";
/// HMAC with SHA-1, SHA-256 and so on (RFC 8018, B.1).
pub const HMAC_SHA1: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x02\x07";
pub const HMAC_SHA224: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x02\x08";
pub const HMAC_SHA256: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x02\x09";
pub const HMAC_SHA384: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x02\x0a";
pub const HMAC_SHA512: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x02\x0b";

/// Ciphers in CBC mode (RFC 8018, B.2; NIST's arc of AES).
pub const TRIPLE_DES_CBC: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x03\x07";
pub const RC2_CBC: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x03\x02";
pub const AES128_CBC: &[u8] = b"\x60\x86\x48\x01\x65\x03\x04\x01\x02";
pub const AES192_CBC: &[u8] = b"\x60\x86\x48\x01\x65\x03\x04\x01\x16";
pub const AES256_CBC: &[u8] = b"\x60\x86\x48\x01\x65\x03\x04\x01\x2a";

/// PKCS#12's own password-based encryption (RFC 7292, C); the last byte is the scheme.
pub const PKCS12_PBE: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x0c\x01";
/// PKCS#12 bags (RFC 7292, D); the last byte is the kind.
pub const BAG: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x0c\x0a\x01";
/// An X.509 certificate in a bag.
pub const X509_CERTIFICATE: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x09\x16\x01";
/// Attributes of bags: friendlyName and localKeyId (RFC 2985, 5.5), and Microsoft's provider name.
pub const FRIENDLY_NAME: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x09\x14";
pub const LOCAL_KEY_ID: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x09\x15";
pub const PROVIDER_NAME: &[u8] = b"\x2b\x06\x01\x04\x01\x82\x37\x11\x01";

/// Kinds of content (RFC 5652).
pub const DATA: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x07\x01";
pub const ENCRYPTED_DATA: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x07\x06";

/// Parts of names (X.520; RFC 2985; RFC 4519), with their abbreviations (RFC 4514).
pub const NAME_PARTS: &[(&[u8], &str)] = &[
    (COMMON_NAME, "CN"),
    (b"\x55\x04\x06", "C"),
    (LOCALITY, "L"),
    (b"\x55\x04\x08", "ST"),
    (b"\x55\x04\x0a", "O"),
    (UNIT, "OU"),
    (b"\x2a\x86\x48\x86\xf7\x0d\x01\x09\x01", "E"),
    (b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x19", "DC"),
];
pub const COMMON_NAME: &[u8] = b"\x55\x04\x03";
pub const LOCALITY: &[u8] = b"\x55\x04\x07";
pub const UNIT: &[u8] = b"\x55\x04\x0b";

/// Extensions of certificates (RFC 5280, 4.2.1).
pub const KEY_IDENTIFIER: &[u8] = b"\x55\x1d\x0e";
pub const KEY_USAGE: &[u8] = b"\x55\x1d\x0f";
pub const EXTENDED_KEY_USAGE: &[u8] = b"\x55\x1d\x25";
/// Purposes of certificates: EFS, and EFS recovery (1.3.6.1.4.1.311.10.3.4 and .4.1).
pub const EFS: &[u8] = b"\x2b\x06\x01\x04\x01\x82\x37\x0a\x03\x04";
pub const EFS_RECOVERY: &[u8] = b"\x2b\x06\x01\x04\x01\x82\x37\x0a\x03\x04\x01";
