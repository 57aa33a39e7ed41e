/* The first bytes of a volume on standard output. The passphrase is the first line of standard input. */
#include <claviger.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    char line[1024], start[512];
    if (argc != 2 || !fgets(line, sizeof line, stdin))
        return 1;
    claviger_error *error = NULL;
    claviger_options *options = claviger_options_new();
    claviger_options_secret(options, CLAVIGER_SECRET_PASSWORD, line, strcspn(line, "\n"), NULL);
    explicit_bzero(line, sizeof line);

    claviger_volume *volume = claviger_open(argv[1], options, &error);
    claviger_options_free(options);
    if (volume && claviger_read(volume, 0, start, sizeof start, &error) == CLAVIGER_CODE_DONE)
        fwrite(start, 1, sizeof start, stdout);
    claviger_close(volume, NULL);

    if (error)
        fprintf(stderr, "%s\n", claviger_error_message(error));
    int code = claviger_error_code(error);
    claviger_error_free(error);
    return code;
}
