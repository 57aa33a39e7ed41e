/* claviger: encrypted volumes for programs in C. SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * cc program.c $(pkg-config --cflags --libs claviger)
 *
 * Failure. What returns an int returns CLAVIGER_CODE_DONE or another claviger_code. The last argument of each such function is where
 * it puts an error that claviger_error_free() frees; it may be NULL, and it is written only if the function fails.
 *
 * Memory. Whatever this library makes, it frees: with the function that is named where it is made, once. All lengths and offsets are
 * in bytes. A pointer that is NULL where there must be something is CLAVIGER_CODE_MISUSE. Texts end with a NUL.
 *
 * Threads. A volume may be read, written and flushed on several threads at once; a range that one writes while another reads it is
 * either, sector by sector. Options are set on one thread at a time and not while something is done with them, but for claviger_cancel().
 * A large request uses all processors. Large reads and writes are 1 to 4 MiB. Signals: none is caught.
 *
 * Processes. A child of fork() has a volume without its keys: reading and writing it is CLAVIGER_CODE_MISUSE there. It still holds the
 * lock on the file. fork() and exec() are fine.
 */

#ifndef CLAVIGER_H
#define CLAVIGER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// What a function returns that did not fail, and the code of an error: the exit status that the program would have.
typedef enum {
  // It is done.
  CLAVIGER_CODE_DONE = 0,
  // The call makes no sense: an unknown format, a range past the end, a NULL where there must be something.
  CLAVIGER_CODE_MISUSE = 1,
  // Nothing that was given opens the volume.
  CLAVIGER_CODE_WRONG_CREDENTIAL = 2,
  // It is no volume of that format, or of any known one.
  CLAVIGER_CODE_NOT_THIS_FORMAT = 3,
  // It is damaged, or was cut short.
  CLAVIGER_CODE_DAMAGED = 4,
  // It is known what it is, and that cannot be done.
  CLAVIGER_CODE_UNSUPPORTED = 5,
  // A file or device cannot be read or written.
  CLAVIGER_CODE_IO = 6,
  // Deriving the key takes more memory than there is.
  CLAVIGER_CODE_OUT_OF_MEMORY = 7,
  // claviger_cancel() was called.
  CLAVIGER_CODE_CANCELLED = 8,
  // Another process has it open.
  CLAVIGER_CODE_IN_USE = 9,
  // A mistake of this library, which has told it on standard error.
  CLAVIGER_CODE_INTERNAL = 10,
} claviger_code;

// An option with a text. Paths are bytes of any encoding, all else is UTF-8.
typedef enum {
  // The format: `LUKS2`. Without it, that is found out; claviger_create() makes VeraCrypt's.
  CLAVIGER_TEXT_FORMAT = 0,
  // The file with the header, where it is detached.
  CLAVIGER_TEXT_HEADER = 1,
  // Only this hash; that of a new volume.
  CLAVIGER_TEXT_HASH = 2,
  // Only this cipher; that of a new volume.
  CLAVIGER_TEXT_CIPHER = 3,
  // A keyfile, or a folder of them. It may be given several times.
  CLAVIGER_TEXT_KEYFILE = 4,
  // A keyfile of the hidden volume that is to be protected. It may be given several times.
  CLAVIGER_TEXT_HIDDEN_KEYFILE = 5,
  // The logical volume of LVM2 that is inside: `GROUP/VOLUME` or `VOLUME`.
  CLAVIGER_TEXT_LOGICAL_VOLUME = 6,
  // The label of a new volume.
  CLAVIGER_TEXT_LABEL = 7,
  // The key derivation function of a new volume: `argon2id`, `pbkdf2`.
  CLAVIGER_TEXT_KDF = 8,
} claviger_text;

// An option with a number. Those that are yes or no are 1 or 0.
typedef enum {
  // Whether it is opened for writing. Otherwise nothing is ever written.
  CLAVIGER_NUMBER_WRITABLE = 0,
  // The partition of the disk, counted from 1.
  CLAVIGER_NUMBER_PARTITION = 1,
  // The PIM of VeraCrypt.
  CLAVIGER_NUMBER_PIM = 2,
  // Only this keyslot.
  CLAVIGER_NUMBER_KEYSLOT = 3,
  // Whether only backups of headers are tried.
  CLAVIGER_NUMBER_BACKUP_HEADER = 4,
  // Whether what was cut short is opened for reading.
  CLAVIGER_NUMBER_TRUNCATED = 5,
  // Whether work is begun that takes more than five minutes for all keyslots, as a hostile header can ask for.
  CLAVIGER_NUMBER_ALLOW_SLOW = 6,
  // The PIM of the hidden volume that is to be protected.
  CLAVIGER_NUMBER_HIDDEN_PIM = 7,
  // Where the data begin, in bytes, for formats without a header.
  CLAVIGER_NUMBER_DATA_OFFSET = 8,
  // Bits of the key, for formats without a header, and of a new volume.
  CLAVIGER_NUMBER_KEY_BITS = 9,
  // Bytes of an encryption sector, for formats without a header, and of a new volume.
  CLAVIGER_NUMBER_SECTOR_SIZE = 10,
  // Whether a new volume is left as zeros where it is not used. Everybody then sees how much is.
  CLAVIGER_NUMBER_QUICK = 11,
  // Milliseconds that deriving a new volume's key is to take here.
  CLAVIGER_NUMBER_KDF_TIME = 12,
  // Iterations of a new volume's key derivation, exactly.
  CLAVIGER_NUMBER_KDF_ITERATIONS = 13,
  // Memory of a new volume's key derivation, in KiB.
  CLAVIGER_NUMBER_KDF_MEMORY = 14,
} claviger_number;

// An option that is secret.
typedef enum {
  // The password or passphrase, without a newline; BitLocker's recovery password as it is printed.
  CLAVIGER_SECRET_PASSWORD = 0,
  // The volume key itself.
  CLAVIGER_SECRET_VOLUME_KEY = 1,
  // The password of the hidden volume in this one. A write that would damage it is refused, and from then on every write is.
  CLAVIGER_SECRET_HIDDEN_PASSWORD = 2,
} claviger_secret;

// What went wrong.
typedef struct claviger_error claviger_error;

// How a volume is opened or created.
typedef struct claviger_options claviger_options;

// An open volume.
typedef struct claviger_volume claviger_volume;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of this library. It is never freed.
const char *claviger_version(void);

// New options, all of them as they usually are. claviger_options_free() frees them.
claviger_options *claviger_options_new(void);

// Frees options, and wipes the secrets in them. NULL is none.
void claviger_options_free(claviger_options *options);

// Sets an option of claviger_text, of which a copy is kept.
int claviger_options_text(claviger_options *options,
                          int which,
                          const char *value,
                          claviger_error **error);

// Sets an option of claviger_number.
int claviger_options_number(claviger_options *options,
                            int which,
                            uint64_t value,
                            claviger_error **error);

// Sets an option of claviger_secret: `len` bytes, which are copied to memory that is locked and wiped. The caller wipes his own.
int claviger_options_secret(claviger_options *options,
                            int which,
                            const void *value,
                            size_t len,
                            claviger_error **error);

// Ends what is done with these options, on whichever thread: it fails with `CLAVIGER_CODE_CANCELLED`, and so does all that is begun with
// them later. May be called from a signal handler.
void claviger_cancel(const claviger_options *options);

// Says in `json` what is at `path`, as a JSON object: `verdict` (`yes`, `possible` or `no`), `candidates` (formats), and what was seen. No
// password is needed.
// claviger_string_free() frees it.
int claviger_identify(const char *path,
                      char **json,
                      claviger_error **error);

// Says in `json` why what is at `path` does not open, as a JSON object. With a password or keyfiles in the options they are tried, in
// the forms that common mistakes give them, too. claviger_string_free() frees it.
int claviger_explain(const char *path,
                     const claviger_options *options,
                     char **json,
                     claviger_error **error);

// Makes a volume of `size` bytes, headers included, in a new file, which nobody else can read. What exists is never overwritten.
int claviger_create(const char *path,
                    uint64_t size,
                    const claviger_options *options,
                    claviger_error **error);

// Opens the volume in a file or block device; NULL if that fails. The options are not needed any more afterwards. The file is locked
// while it is open: readers share it, a writer has it alone. claviger_close() closes it.
claviger_volume *claviger_open(const char *path,
                               const claviger_options *options,
                               claviger_error **error);

// Bytes of the plaintext; 0 for NULL, and in a process that was forked from the one that opened it.
uint64_t claviger_size(const claviger_volume *volume);

// Fills `buffer` with the `len` bytes at `offset`, all of them or it fails.
int claviger_read(const claviger_volume *volume,
                  uint64_t offset,
                  void *buffer,
                  size_t len,
                  claviger_error **error);

// Writes `len` bytes to `offset`, all of them or it fails. They are durable once claviger_flush() or claviger_close() has returned
// `CLAVIGER_CODE_DONE`.
int claviger_write(const claviger_volume *volume,
                   uint64_t offset,
                   const void *data,
                   size_t len,
                   claviger_error **error);

// Makes all writes durable that have returned.
int claviger_flush(const claviger_volume *volume, claviger_error **error);

// Closes a volume and wipes its keys, once all writes are durable. It is closed also where that fails. NULL is none.
int claviger_close(claviger_volume *volume,
                   claviger_error **error);

// The code of an error; `CLAVIGER_CODE_DONE` for NULL.
int claviger_error_code(const claviger_error *error);

// What is wrong, in a line, which lives as long as the error; NULL for NULL.
const char *claviger_error_message(const claviger_error *error);

// What to try, in whole sentences, which live as long as the error; NULL where nobody knows.
const char *claviger_error_hint(const claviger_error *error);

// Frees an error. NULL is none.
void claviger_error_free(claviger_error *error);

// Frees a text that claviger_identify() or claviger_explain() has made. NULL is none.
void claviger_string_free(char *string);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CLAVIGER_H */
