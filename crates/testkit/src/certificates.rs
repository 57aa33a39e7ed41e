//! TLS certificates made by OpenSSL, with the file names that libnbd, nbdkit and qemu use.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tools::{program, run};

/// An authority with its own folder.
pub struct Authority {
    folder: PathBuf,
}

impl Authority {
    /// Creates an authority; a reported skip without OpenSSL.
    ///
    /// # Panics
    /// If the folder cannot be created.
    pub fn new(folder: &Path) -> Option<Self> {
        program("openssl")?;
        fs::create_dir_all(folder).expect("a folder");
        // Authorities of the same name would be reported as one with a wrong signature.
        let name = format!("authority {}", folder.file_name().unwrap_or_default().display());
        new_key(folder, "ca", &name, "-x509 -days 30 -addext keyUsage=critical,keyCertSign,cRLSign -out ca-cert.pem");
        Some(Self { folder: folder.to_owned() })
    }

    /// An authority with certificates for a server, called localhost and 127.0.0.1, and for a client.
    pub fn with_both(folder: &Path) -> Option<Self> {
        let authority = Self::new(folder)?;
        authority.issue("server", "DNS:localhost,IP:127.0.0.1", 30);
        authority.issue("client", "DNS:client", 30);
        Some(authority)
    }

    /// The folder of the authority and its certificates.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Issues a certificate and a key to `who`, "server" or "client", with these alternative names if any, for this many days.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn issue(&self, who: &str, names: &str, days: i32) {
        // qemu requires keyEncipherment.
        let mut extensions =
            format!("keyUsage=critical,digitalSignature,keyEncipherment\nextendedKeyUsage={who}Auth\n");
        if !names.is_empty() {
            extensions += &format!("subjectAltName={names}\n");
        }
        fs::write(self.folder.join("extensions"), extensions).expect("written");
        new_key(&self.folder, who, who, "-out request.pem");
        let sign = "x509 -req -in request.pem -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -extfile extensions";
        openssl(&self.folder, &format!("{sign} -days {days} -out {who}-cert.pem"), &[]);
        for file in ["extensions", "request.pem"] {
            fs::remove_file(self.folder.join(file)).expect("removed");
        }
    }

    /// Revokes the certificate of `who`.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn revoke(&self, who: &str) {
        let config =
            "[ca]\ndefault_ca=a\n[a]\ndatabase=revoked.txt\ndefault_md=sha256\ndefault_crl_days=30\ncrlnumber=number\n";
        for (file, contents) in [("config", config), ("revoked.txt", ""), ("number", "01\n")] {
            fs::write(self.folder.join(file), contents).expect("written");
        }
        let ca = "ca -config config -cert ca-cert.pem -keyfile ca-key.pem";
        openssl(&self.folder, &format!("{ca} -revoke {who}-cert.pem"), &[]);
        openssl(&self.folder, &format!("{ca} -gencrl -out ca-crl.pem"), &[]);
    }

    /// Fills another folder with the authority `trusted` and the certificate and key of `who` from this one.
    ///
    /// # Panics
    /// If a file cannot be copied.
    pub fn lend(&self, who: &str, trusted: &Self, to: &Path) {
        fs::create_dir_all(to).expect("a folder");
        for (from, file) in
            [(trusted, "ca-cert.pem".into()), (self, format!("{who}-cert.pem")), (self, format!("{who}-key.pem"))]
        {
            fs::copy(from.folder.join(&file), to.join(&file)).expect("copied");
        }
    }
}

/// A certificate request, or with `words` a certificate, of this name with a new key for `who`.
fn new_key(folder: &Path, who: &str, name: &str, words: &str) {
    let key = format!("-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {who}-key.pem");
    openssl(folder, &format!("req {key} {words}"), &["-subj", &format!("/CN={name}")]);
}

/// Runs OpenSSL in the folder with these words, and with `more`, which may have spaces.
fn openssl(folder: &Path, words: &str, more: &[&str]) {
    run(Command::new("openssl").args(words.split(' ')).args(more).current_dir(folder));
}
