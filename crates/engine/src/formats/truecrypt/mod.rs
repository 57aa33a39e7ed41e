//! (being built)
use super::*;
/// (being built)
pub struct TrueCrypt;
impl Format for TrueCrypt {
    fn name(&self) -> &'static str {
        "TrueCrypt"
    }
    fn identify(&self, _: &dyn Store) -> Result<Verdict> {
        Ok(Verdict::No("being built".into()))
    }
    fn open(&self, _: &dyn Store) -> Result<Box<dyn Header>> {
        Err(Error::unsupported("being built"))
    }
    fn create(&self, _: &dyn Store, _: &Spec<'_>, _: &[Credential]) -> Result<()> {
        Err(Error::unsupported("being built"))
    }
    fn choices(&self) -> Choices {
        Choices { ciphers: vec![], hashes: vec![], min_len: 0 }
    }
}
