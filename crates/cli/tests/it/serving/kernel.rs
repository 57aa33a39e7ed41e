//! `claviger attach --kernel`, in user-mode Linux, which has a device-mapper whatever this machine has.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::*;
use claviger_testkit::random::Random;
use claviger_testkit::{tools, uml};

/// What is in every volume.
fn image(folder: &Folder) -> String {
    let image = folder.str("image");
    fs::write(&image, Random::new(5).bytes(512 << 10)).expect("an image");
    image
}

/// A volume that holds the image and opens fast.
fn truecrypt(folder: &Folder, name: &str, cipher: &str) -> String {
    let (image, volume) = (folder.str("image"), folder.str(name));
    let args =
        ["convert", "--raw-source", "--new-format", "TrueCrypt", "--new-hash", "SHA-512", "--new-cipher", cipher];
    run(args.into_iter().chain(["--new-password-file", &folder.password, &image, &volume])).succeeds();
    volume
}

/// The beginning of a script: the program, and a word for failing.
fn script(folder: &Folder) -> String {
    let (program, password) = (env!("CARGO_BIN_EXE_claviger"), &folder.password);
    format!(
        "set -e\nexport XDG_RUNTIME_DIR=/run\nPW={password}\nIMAGE={}\n\
         claviger() {{ {program} \"$@\"; }}\nattach() {{ claviger attach --kernel --json --password-file $PW \"$@\"; }}\n\
         fails() {{ code=$1; shift; rc=0; \"$@\" || rc=$?; test $rc = $code || {{ echo \"$* gave $rc, not $code\"; exit 9; }}; }}\n",
        folder.str("image")
    )
}

fn in_uml(script: &str, images: &[&Path]) -> Option<String> {
    let done = uml::run(script, images, 200)?;
    assert_eq!(done.status, 0, "{}", done.output);
    Some(done.output)
}

#[test]
fn truecrypt_volumes_and_their_cascades_are_the_same_in_the_kernel() {
    if tools::program("dmsetup").is_none() || tools::program("cryptsetup").is_none() {
        return;
    }
    let folder = Folder::new();
    image(&folder);
    let single = truecrypt(&folder, "aes.tc", "AES");
    let two = truecrypt(&folder, "two.tc", "Twofish-Serpent");
    let three = truecrypt(&folder, "three.tc", "AES-Twofish-Serpent");
    let mut script = script(&folder);
    // A file by way of a loop device, a block device, and a stack of devices.
    for (volume, name) in [(&*single, "single"), ("/dev/ubda", "two"), ("/dev/ubdb", "three")] {
        script += &format!(
            "attach --truecrypt --hash SHA-512 {volume} {name}\ncmp /dev/mapper/{name} $IMAGE\n\
             dmsetup table --showkeys {name} | grep ' :64:logon:claviger:'\ncryptsetup status {name} | grep 'type:.*TCRYPT'\n"
        );
    }
    script += &format!(
        "dmsetup info -c --noheadings -o name | sort | tr '\\n' ' '\n\
         fails 9 attach --truecrypt --hash SHA-512 {single} single\n\
         fails 9 attach --truecrypt --hash SHA-512 /dev/ubda other\n\
         printf changed | dd of=/dev/mapper/single bs=512 seek=7 conv=notrunc,fsync 2>/dev/null\n\
         claviger detach single two /dev/mapper/three\n\
         test \"$(dmsetup ls)\" = 'No devices found'\ntest ! -e /dev/mapper/single\n\
         test -z \"$(cat /sys/block/loop*/loop/backing_file 2>/dev/null)\"\n\
         claviger cat --truecrypt --hash SHA-512 --password-file $PW --offset 3584 --length 7 {single} | grep '^changed$'\n\
         fails 1 claviger detach single\n\
         attach --read-only --truecrypt --hash SHA-512 {single} single\n\
         test $(cat /sys/block/dm-0/ro) = 1\nclaviger detach single\n\
         dmsetup create foreign --table '0 8 zero'\nfails 1 claviger detach foreign\ndmsetup remove foreign\n\
         echo done\n"
    );
    let Some(output) = in_uml(&script, &[Path::new(&two), Path::new(&three)]) else { return };
    assert!(output.contains("single three three_1 three_2 two two_1"), "{output}");
    assert!(output.contains("\"key\": \"keyring\"") && output.ends_with("done\n"), "{output}");
}

/// Volumes that cryptsetup makes and fills, opened by this program in the kernel: the same contents, and the same table but for
/// the key.
#[test]
fn volumes_of_cryptsetup_have_the_tables_that_it_gives_them() {
    if tools::program("dmsetup").is_none() || tools::program("cryptsetup").is_none() {
        return;
    }
    let folder = Folder::new();
    image(&folder);
    fs::write(folder.path("word"), PASSWORD).expect("a passphrase without a newline");
    let keys: String = (0..65).map(|i| format!("{:A<58}{:02}\n", "key", i)).collect();
    fs::write(folder.path("keys"), keys).expect("a key file");
    let (word, keys) = (folder.str("word"), folder.str("keys"));
    let luks = format!("cryptsetup luksFormat -q --key-file {word} --pbkdf pbkdf2 --pbkdf-force-iterations 1000");
    let luks2 = format!("{luks} --type luks2 --luks2-metadata-size 16k --luks2-keyslots-size 512k");
    let plain = "--cipher serpent-cbc-essiv:sha256 --key-size 256 --hash sha512 --offset 16 --skip 3";
    // How it is made, opened by cryptsetup, opened by this program; its type.
    let cases = [
        (format!("{luks} --type luks1 IMG"), format!("cryptsetup open --key-file {word} IMG"), "", "LUKS1"),
        (format!("{luks2} IMG"), format!("cryptsetup open --key-file {word} IMG"), "", "LUKS2"),
        (
            format!("{luks2} --sector-size 4096 --cipher twofish-xts-plain64 IMG"),
            format!("cryptsetup open --key-file {word} IMG"),
            "",
            "LUKS2",
        ),
        (
            "true".to_owned(),
            format!("cryptsetup open --type plain {plain} IMG"),
            "--format plain --cipher serpent-cbc-essiv:sha256 --key-size 256 --hash sha512 --data-offset 8K --skip 3",
            "PLAIN",
        ),
        (
            "true".to_owned(),
            format!("cryptsetup open --type loopaes --key-size 256 --key-file {keys} IMG"),
            "KEYS --format loop-AES --cipher aes --key-size 256",
            "LOOPAES",
        ),
    ];
    let mut script = script(&folder);
    for (i, (make, open, options, kind)) in cases.iter().enumerate() {
        let image = format!("/mnt/{i}");
        let open = open.replace("IMG", &image);
        let attach = match options.strip_prefix("KEYS") {
            Some(options) => format!("claviger attach --kernel --json --keyfile {keys} {options}"),
            None => format!("attach {options}"),
        };
        // The key and the loop device's number differ.
        script += &format!(
            "truncate -s 8M {image}\n{}\nmodprobe -q loop\n\
             printf %s '{PASSWORD}' | {open} x\ndd if=$IMAGE of=/dev/mapper/x bs=64k conv=fsync 2>/dev/null\n\
             dmsetup table x | cut -d' ' -f1-4,6,8- > theirs\ncryptsetup close x\n\
             {attach} {image} x\ncmp -n 524288 /dev/mapper/x $IMAGE\n\
             dmsetup table x | cut -d' ' -f1-4,6,8- > ours\ncmp theirs ours\n\
             dmsetup table --showkeys x | grep ':logon:claviger:'\n\
             cryptsetup status x | grep 'type:.*{kind}'\nclaviger detach x\nrm {image}\n",
            make.replace("IMG", &image)
        );
    }
    script += "echo done\n";
    let Some(output) = in_uml(&script, &[]) else { return };
    assert!(output.ends_with("done\n"), "{output}");
}

/// A detached header, and lines of a table. What is written by the kernel is where this program reads it.
#[test]
fn detached_headers_and_lines_of_the_table_are_attached_in_the_kernel() {
    if tools::program("dmsetup").is_none() || tools::program("cryptsetup").is_none() {
        return;
    }
    let folder = Folder::new();
    image(&folder);
    fs::write(folder.path("word"), PASSWORD).expect("a passphrase without a newline");
    fs::write(folder.path("key"), Random::new(6).bytes(64)).expect("a key");
    let (word, key) = (folder.str("word"), folder.str("key"));
    let format = format!(
        "cryptsetup luksFormat -q --key-file {word} --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --type luks2 \
         --luks2-metadata-size 16k --luks2-keyslots-size 512k"
    );
    let mut script = script(&folder);
    script += &format!(
        "cd /mnt\ntruncate -s 4M data integral\ntruncate -s 4M raw\n{format} --header header data\n\
         claviger attach --kernel --password-file {word} --header header data detached\n\
         dd if=$IMAGE of=/dev/mapper/detached bs=64k conv=fsync 2>/dev/null\nclaviger detach detached\n\
         claviger cat --password-file {word} --header header --length 524288 data | cmp - $IMAGE\n\
         cat >table <<END\n\
         lines /mnt/data {word} luks,header=/mnt/header\n\
         bare /mnt/raw {key} plain,cipher=aes-xts-plain64,size=512,readonly\n\
         END\n\
         printf %s '{PASSWORD}' | cryptsetup open --type plain --cipher aes-xts-plain64 --key-size 512 --key-file {key} raw x\n\
         dd if=$IMAGE of=/dev/mapper/x bs=64k conv=fsync 2>/dev/null\ncryptsetup close x\n\
         claviger attach --kernel --crypttab table lines bare\n\
         cmp -n 524288 /dev/mapper/lines $IMAGE\ncmp -n 524288 /dev/mapper/bare $IMAGE\n\
         test $(blockdev --getro /dev/mapper/bare) = 1\nclaviger detach lines bare\n\
         {format} --integrity hmac-sha256 --integrity-no-wipe integral\n\
         fails 5 claviger attach --kernel --password-file {word} integral integral\n\
         test \"$(dmsetup ls)\" = 'No devices found'\necho done\n"
    );
    let Some(output) = in_uml(&script, &[]) else { return };
    assert!(output.contains("integrity protection hmac(sha256)") && output.ends_with("done\n"), "{output}");
}

/// Swap under a key that nobody keeps: the kernel swaps to it, others know it, and the device shows nothing of it.
#[test]
fn swap_gets_another_key_each_time() {
    if ["dmsetup", "swapon", "blkid", "file"].into_iter().any(|name| tools::program(name).is_none()) {
        return;
    }
    let folder = Folder::new();
    let device = folder.path("device");
    fs::write(&device, vec![0; 8 << 20]).expect("a device");
    let mut script = script(&folder);
    script += "cd /mnt\nclaviger attach --kernel --json --random-key --swap /dev/ubda swap >said\n\
         grep '\"key\": \"keyring\"' said\ngrep '\"swap\": true' said\n\
         dmsetup table --showkeys swap | grep '^0 16384 crypt aes-xts-plain64 :64:logon:claviger:.* 0 .* 0$'\n\
         blkid -p /dev/mapper/swap | grep 'TYPE=\"swap\"'\nfile -sL /dev/mapper/swap | grep -i 'swap file.* version 1, size 2047 pages, 0 bad pages'\n\
         swapon /dev/mapper/swap\ngrep 'partition.*8188' /proc/swaps || { cat /proc/swaps; exit 7; }\n\
         fails 9 claviger detach swap\nswapoff /dev/mapper/swap\nclaviger detach swap\n\
         if grep -q SWAPSPACE2 /dev/ubda; then exit 8; fi\nhead -c 4096 /dev/ubda >first\n";
    // Again, by a line of a table: what the first key has left is taken without a question.
    script += "echo 'other /dev/ubda /dev/urandom swap,cipher=aes-cbc-essiv:sha256,size=256,offset=8,nofail' >table\n\
         fails 5 claviger attach --crypttab table other\n\
         claviger attach --kernel --crypttab table other\n\
         dmsetup table other | grep '^0 16376 crypt aes-cbc-essiv:sha256 .* 8$'\n\
         swapon /dev/mapper/other\nswapoff /dev/mapper/other\nclaviger detach other\n\
         cmp -n 4096 /dev/ubda first\n\
         claviger attach --kernel --random-key --swap /dev/ubda swap\nclaviger detach swap\n\
         if cmp -s -n 4096 /dev/ubda first; then exit 10; fi\n\
         fails 1 claviger attach --kernel --random-key --password-file $PW /dev/ubda swap\n\
         fails 1 claviger attach --kernel --random-key --format LUKS2 /dev/ubda swap\n\
         fails 1 claviger attach --kernel --random-key --hash sha256 /dev/ubda swap\n\
         fails 1 claviger attach --kernel --random-key --key-size 4294967288 /dev/ubda swap\n\
         fails 1 claviger attach --kernel --random-key --cipher cipher_null-ecb /dev/ubda swap\n\
         fails 1 claviger attach --kernel --random-key --swap --data-size 8s /dev/ubda swap\n\
         test \"$(dmsetup ls)\" = 'No devices found'\necho done\n";
    let Some(output) = in_uml(&script, &[&device]) else { return };
    assert!(output.ends_with("done\n"), "{output}");
}

/// Data that somebody may want to keep are overwritten only if that is requested twice. Then they are no longer recognised.
#[test]
fn a_random_key_takes_no_device_on_which_something_is_recognised() {
    if ["dmsetup", "mke2fs"].into_iter().any(|name| tools::program(name).is_none()) {
        return;
    }
    let folder = Folder::new();
    let luks = folder.str("luks");
    let args =
        ["create", "--format", "LUKS1", "--size", "8M", "--iterations", "1000", "--password-file", &folder.password];
    run([&args[..], &[&luks]].concat()).succeeds();
    let ext = folder.path("ext");
    fs::write(&ext, vec![0; 8 << 20]).expect("a device");
    tools::run(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(&ext));
    let mut script = script(&folder);
    for (device, name) in [("/dev/ubda", "LUKS1"), ("/dev/ubdb", "ext4")] {
        script += &format!(
            "sha256sum {device} >before\n\
             for more in '' --swap --force '--data-offset 1M'; do\n\
             fails 1 claviger attach --kernel --random-key $more {device} swap 2>said\ngrep '{name}' said\ndone\n\
             sha256sum -c before\n\
             claviger attach --kernel --random-key --swap --force --yes {device} swap\nclaviger detach swap\n\
             claviger attach --kernel --random-key --swap {device} swap\nclaviger detach swap\n"
        );
    }
    // A small file system in front, for its label, is in nobody's way.
    script += "cd /mnt\ntruncate -s 8M labelled\nmke2fs -q -F -L cryptswap labelled 1M\ndd if=/dev/zero of=labelled bs=1M seek=1 count=7 conv=notrunc 2>/dev/null\n\
         head -c 1M labelled >front\n\
         claviger attach --kernel --random-key --swap --data-offset 1M labelled swap\nclaviger detach swap\n\
         cmp -n 1048576 labelled front\nfails 1 claviger attach --kernel --random-key labelled swap\necho done\n";
    let Some(output) = in_uml(&script, &[Path::new(&luks), &ext]) else { return };
    assert!(output.ends_with("done\n"), "{output}");
}

/// The sweep of `claviger lab run` has the kernel's dm-crypt in it, beside its own baseline, and leaves nothing behind.
#[test]
fn the_labs_sweep_has_the_kernel_in_it() {
    if tools::program("dmsetup").is_none() || tools::program("cryptsetup").is_none() {
        return;
    }
    let folder = Folder::new();
    let lab = "claviger lab run --preset sweep --facility dm-crypt/plain --facility nbd/TrueCrypt --size 64M --repeats 1 --seed 1";
    let script = script(&folder)
        + &format!(
            "{lab} --out run\nmv run/run.json {0}\n\
             test \"$(ls /sys/block | grep -c dm-)\" = 0\ntest -z \"$(ls /dev/mapper | grep lab)\"\n\
             test -z \"$(cat /sys/block/loop*/loop/backing_file 2>/dev/null)\"\necho done\n",
            folder.str("report")
        );
    let Some(output) = in_uml(&script, &[]) else { return };
    assert!(output.ends_with("done\n"), "{output}");
    let report = fs::read_to_string(folder.path("report")).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert!(report["run"]["failures"].as_array().expect("a list").is_empty(), "{}", report["run"]["failures"]);
    let cells = report["summary"]["cells"].as_array().expect("cells");
    for (facility, baseline) in
        [("dm-crypt/plain", Some("loop")), ("loop", None), ("nbd/TrueCrypt", Some("plain-nbd")), ("plain-nbd", None)]
    {
        let own: Vec<_> = cells.iter().filter(|c| c["facility"] == facility && c["workload"] == "dd").collect();
        assert!(own.len() >= 6, "{facility}: {own:?}");
        for cell in own {
            assert!(cell["median"].as_f64() > Some(0.0) && cell["loss"].is_null() == baseline.is_none(), "{cell}");
        }
    }
}

#[test]
fn what_the_kernel_cannot_do_is_said_before_a_password_is_asked_for() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "400K", &[]);
    if has_device_mapper() {
        return;
    }
    run(["attach", "--kernel", &volume, "x"]).fails(5, &["device-mapper", "omit --kernel"]);
    run(["attach", "--hash", "SHA-512", &volume, "x"]).fails(1, &["--kernel"]);
    run(["detach", "x"]).fails(5, &["device-mapper"]);
    run(["detach", "../x"]).fails(1, &["cannot be a mapping's name"]);
}

/// Whether this machine has a device-mapper of its own, where nothing is to be set up by a test.
fn has_device_mapper() -> bool {
    fs::read_to_string("/proc/misc").is_ok_and(|misc| misc.contains("device-mapper"))
}
