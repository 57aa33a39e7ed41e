#!/bin/sh
# Tests a Debian package in a fresh root from debootstrap: install it, follow the README, upgrade it while a volume is mounted, remove it
# without a trace.
#   tools/deb-test.sh OLD.deb NEW.deb
set -eu
[ "$(id -u)" = 0 ] || exec sudo -n "$0" "$@"
lintian --fail-on error "$(dirname "$2")"/*.deb
work=$(mktemp -d)
# The root's mounts end with their namespace.
trap 'rm -rf --one-file-system "$work"' EXIT
# Links of the guide lead to files in the package.
dpkg-deb -x "$2" "$work/files"
find "$work/files/usr/share/doc/claviger" -name '*.md' | while read -r page; do
    grep -o ']([^)#]*' "$page" | cut -c 3- | grep -v -e '^http' -e '^$' | while read -r link; do
        [ -e "$(dirname "$page")/$link" ] || echo "$page: $link leads nowhere"
    done
done >"$work/dead"
if grep . "$work/dead"; then exit 1; fi
debootstrap --variant=minbase --include=fuse3,dosfstools,exfatprogs,fuse2fs,ntfs-3g stable "$work/root" "${MIRROR:-http://deb.debian.org/debian}" >"$work/log" || {
    cat "$work/log"
    exit 1
}
mkdir "$work/root/packages"
cp "$1" "$work/root/packages/old.deb"
cp "$2" "$work/root/packages/new.deb"
cat >"$work/root/packages/try" <<'END'
set -eux
mount -t proc proc /proc
mkdir -p /dev/pts
mount -t devpts devpts /dev/pts
[ -e /dev/fuse ] || mknod -m 666 /dev/fuse c 10 229
find / -xdev | sort >/packages/before
apt-get -q install -y /packages/old.deb
grep -q 'claviger mount' /usr/share/doc/claviger/guide/open.md
cd /root
printf 'a password of many words' >pw
claviger create --password-file pw --size 20M --filesystem exfat --pim 1 secrets.hc
claviger identify secrets.hc
mkdir files
# The key process is a second process, also of the old version.
claviger mount --password-file pw --pim 1 --isolate-keys secrets.hc files
printf 'what was written before\n' >files/note

apt-get -q install -y /packages/new.deb
[ "$(dpkg-query -W -f '${Version}' claviger)" != "$(dpkg-deb -f /packages/old.deb Version)" ]
grep before files/note
printf 'and after\n' >>files/note
claviger list
claviger lock files
claviger unlock --password-file pw --pim 1 files
grep after files/note
claviger unmount files
claviger cat --password-file pw --pim 1 secrets.hc --file note | grep after

# mount(8) finds its helper.
printf '/root/secrets.hc /root/files fuse.claviger noauto,password-file=/root/pw,pim=1,ro 0 0\n' >/etc/fstab
mount /root/files
grep after files/note
umount /root/files

rm -r /root/files /root/secrets.hc /root/pw /etc/fstab
apt-get -q purge -y claviger
apt-get -q clean
rm -rf /run/claviger
find / -xdev | sort >/packages/after
# Nothing may be new except the records of dpkg and apt.
diff /packages/before /packages/after | grep '^[<>]' | grep -v -e /var/ -e /packages/ -e /etc/fstab && exit 1
echo "The package was installed, used, upgraded and removed."
END
unshare --mount --pid --fork chroot "$work/root" /bin/sh /packages/try
