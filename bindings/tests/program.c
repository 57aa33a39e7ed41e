/* Each call of claviger.h, as it is meant and as it is not. program VOLUME NEW, where VOLUME is of cryptsetup. */
#include <claviger.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                    \
    do {                                                                               \
        if (!(what)) {                                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                 \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

/* Whether it failed with this code, and says so. */
static int failed(int result, claviger_error **error, claviger_code code) {
    int told = *error != NULL && claviger_error_code(*error) == (int)code && strlen(claviger_error_message(*error)) > 5;
    claviger_error_free(*error);
    *error = NULL;
    return told && result == (int)code;
}

static claviger_options *with_password(const char *password) {
    claviger_options *options = claviger_options_new();
    CHECK(claviger_options_secret(options, CLAVIGER_SECRET_PASSWORD, password, strlen(password), NULL) == CLAVIGER_CODE_DONE);
    return options;
}

static void look(const char *path) {
    char *json = NULL;
    CHECK(claviger_identify(path, &json, NULL) == CLAVIGER_CODE_DONE && strstr(json, "LUKS2"));
    claviger_string_free(json);
    claviger_options *options = with_password("Correct Horse");
    CHECK(claviger_explain(path, options, &json, NULL) == CLAVIGER_CODE_DONE && strstr(json, "trials"));
    claviger_string_free(json);
    claviger_options_free(options);
}

static void read_and_write(const char *path) {
    claviger_error *error = NULL;
    claviger_options *options = with_password("correct horse");
    claviger_volume *volume = claviger_open(path, options, &error);
    CHECK(volume && !error && claviger_size(volume) == 12 << 20);
    CHECK(failed(claviger_write(volume, 0, "x", 1, &error), &error, CLAVIGER_CODE_IO));
    CHECK(claviger_close(volume, &error) == CLAVIGER_CODE_DONE);

    CHECK(claviger_options_number(options, CLAVIGER_NUMBER_WRITABLE, 1, &error) == CLAVIGER_CODE_DONE);
    volume = claviger_open(path, options, &error);
    CHECK(volume && claviger_write(volume, 1000, "from C", 6, &error) == CLAVIGER_CODE_DONE);
    CHECK(claviger_flush(volume, &error) == CLAVIGER_CODE_DONE);
    /* All of it: more than one thread reads at a time. */
    size_t size = claviger_size(volume);
    char *all = malloc(size);
    CHECK(all && claviger_read(volume, 0, all, size, &error) == CLAVIGER_CODE_DONE && !memcmp(all + 1000, "from C", 6));
    free(all);
    char byte;
    CHECK(failed(claviger_read(volume, size, &byte, 1, &error), &error, CLAVIGER_CODE_MISUSE));
    /* Lengths that no buffer has are seen before anything is done with them. */
    size_t lengths[] = {size + 1, (size_t)1 << 32, (size_t)1 << 40, (size_t)1 << 62, SIZE_MAX / 2, SIZE_MAX / 2 + 1, SIZE_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint64_t offsets[] = {0, 1, size, UINT64_MAX - lengths[i] + 1, UINT64_MAX};
        for (size_t j = 0; j < sizeof offsets / sizeof *offsets; j++) {
            CHECK(failed(claviger_read(volume, offsets[j], &byte, lengths[i], &error), &error, CLAVIGER_CODE_MISUSE));
            CHECK(failed(claviger_write(volume, offsets[j], &byte, lengths[i], &error), &error, CLAVIGER_CODE_MISUSE));
        }
        for (int which = 0; which <= CLAVIGER_SECRET_HIDDEN_PASSWORD; which++)
            CHECK(failed(claviger_options_secret(options, which, &byte, lengths[i], &error), &error, CLAVIGER_CODE_MISUSE));
    }
    CHECK(failed(claviger_write(volume, UINT64_MAX, &byte, 1, &error), &error, CLAVIGER_CODE_MISUSE));
    CHECK(claviger_read(volume, size, NULL, 0, &error) == CLAVIGER_CODE_DONE);
    CHECK(failed(claviger_read(volume, 0, NULL, 1, &error), &error, CLAVIGER_CODE_MISUSE));
    CHECK(failed(claviger_read(volume, 0, &byte, SIZE_MAX, &error), &error, CLAVIGER_CODE_MISUSE));
    claviger_open(path, options, &error);
    CHECK(failed(CLAVIGER_CODE_IN_USE, &error, CLAVIGER_CODE_IN_USE));

    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(claviger_read(volume, 0, &byte, 1, NULL) * 16 + (int)claviger_size(volume));
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == CLAVIGER_CODE_MISUSE * 16);
    CHECK(claviger_close(volume, &error) == CLAVIGER_CODE_DONE && !error);
    claviger_options_free(options);
}

static void refused(const char *path) {
    claviger_error *error = NULL;
    claviger_options *options = with_password("wrong");
    CHECK(!claviger_open(path, options, &error) && failed(CLAVIGER_CODE_WRONG_CREDENTIAL, &error, CLAVIGER_CODE_WRONG_CREDENTIAL));
    CHECK(!claviger_open("/nonexistent", options, &error) && failed(CLAVIGER_CODE_IO, &error, CLAVIGER_CODE_IO));
    CHECK(!claviger_open(path, options, NULL));
    CHECK(!claviger_open(NULL, options, &error) && failed(CLAVIGER_CODE_MISUSE, &error, CLAVIGER_CODE_MISUSE));
    CHECK(!claviger_open(path, NULL, &error) && failed(CLAVIGER_CODE_MISUSE, &error, CLAVIGER_CODE_MISUSE));
    CHECK(failed(claviger_options_text(options, CLAVIGER_TEXT_FORMAT, NULL, &error), &error, CLAVIGER_CODE_MISUSE));
    CHECK(failed(claviger_options_text(options, CLAVIGER_TEXT_FORMAT, "\xff", &error), &error, CLAVIGER_CODE_MISUSE));
    CHECK(failed(claviger_options_text(NULL, CLAVIGER_TEXT_FORMAT, "LUKS2", &error), &error, CLAVIGER_CODE_MISUSE));
    CHECK(failed(claviger_options_text(options, -1, "x", &error), &error, CLAVIGER_CODE_MISUSE));
    CHECK(failed(claviger_options_number(options, CLAVIGER_NUMBER_KDF_MEMORY + 1, 1, &error), &error, CLAVIGER_CODE_MISUSE));
    CHECK(failed(claviger_options_number(options, CLAVIGER_NUMBER_PIM, UINT64_MAX, &error), &error, CLAVIGER_CODE_MISUSE));
    CHECK(failed(claviger_options_number(options, CLAVIGER_NUMBER_WRITABLE, 2, &error), &error, CLAVIGER_CODE_MISUSE));
    CHECK(failed(claviger_options_secret(options, CLAVIGER_SECRET_PASSWORD, NULL, 3, &error), &error, CLAVIGER_CODE_MISUSE));
    CHECK(failed(claviger_identify(path, NULL, &error), &error, CLAVIGER_CODE_MISUSE));
    CHECK(failed(claviger_flush(NULL, &error), &error, CLAVIGER_CODE_MISUSE));
    CHECK(claviger_size(NULL) == 0 && claviger_close(NULL, NULL) == CLAVIGER_CODE_DONE);
    CHECK(claviger_error_code(NULL) == 0 && !claviger_error_message(NULL) && !claviger_error_hint(NULL));
    claviger_options_text(options, CLAVIGER_TEXT_FORMAT, "nonsense", NULL);
    CHECK(!claviger_open(path, options, &error) && failed(CLAVIGER_CODE_MISUSE, &error, CLAVIGER_CODE_MISUSE));
    claviger_options_free(options);
    claviger_options_free(NULL);
    claviger_error_free(NULL);
    claviger_string_free(NULL);
    claviger_cancel(NULL);
}

static void make(const char *path) {
    claviger_error *error = NULL;
    claviger_options *options = with_password("correct horse");
    CHECK(claviger_options_text(options, CLAVIGER_TEXT_FORMAT, "TrueCrypt", &error) == CLAVIGER_CODE_DONE);
    CHECK(claviger_create(path, 1 << 20, options, &error) == CLAVIGER_CODE_DONE && !error);
    CHECK(failed(claviger_create(path, 1 << 20, options, &error), &error, CLAVIGER_CODE_IO));
    /* Numbers at their end: an error, whichever, and no file. */
    char other[4096];
    snprintf(other, sizeof other, "%s.other", path);
    claviger_number numbers[] = {CLAVIGER_NUMBER_DATA_OFFSET, CLAVIGER_NUMBER_KEY_BITS, CLAVIGER_NUMBER_SECTOR_SIZE, CLAVIGER_NUMBER_KDF_MEMORY};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        claviger_options *large = with_password("correct horse");
        uint64_t most = numbers[i] == CLAVIGER_NUMBER_DATA_OFFSET ? UINT64_MAX : UINT32_MAX;
        CHECK(claviger_options_number(large, numbers[i], most, &error) == CLAVIGER_CODE_DONE);
        CHECK(claviger_options_text(large, CLAVIGER_TEXT_FORMAT, "plain", NULL) == CLAVIGER_CODE_DONE);
        if (numbers[i] != CLAVIGER_NUMBER_KDF_MEMORY)
            CHECK(!claviger_open(path, large, &error) && claviger_error_code(error) != CLAVIGER_CODE_INTERNAL);
        claviger_error_free(error);
        error = NULL;
        CHECK(claviger_options_text(large, CLAVIGER_TEXT_FORMAT, "LUKS2", NULL) == CLAVIGER_CODE_DONE);
        CHECK(claviger_options_number(large, CLAVIGER_NUMBER_KDF_ITERATIONS, 4, NULL) == CLAVIGER_CODE_DONE);
        if (numbers[i] != CLAVIGER_NUMBER_DATA_OFFSET) {
            CHECK(claviger_create(other, 20 << 20, large, &error) != CLAVIGER_CODE_DONE && remove(other) != 0);
            CHECK(claviger_error_code(error) != CLAVIGER_CODE_INTERNAL);
        }
        claviger_error_free(error);
        error = NULL;
        claviger_options_free(large);
    }
    for (uint64_t size = UINT64_C(1) << 63; size != 0; size = size == UINT64_MAX ? 0 : UINT64_MAX) {
        int made = claviger_create(other, size, options, &error);
        CHECK(made != CLAVIGER_CODE_DONE && made != CLAVIGER_CODE_INTERNAL && remove(other) != 0);
        claviger_error_free(error);
        error = NULL;
    }
    claviger_volume *volume = claviger_open(path, options, &error);
    CHECK(volume && claviger_size(volume) > 0 && claviger_close(volume, NULL) == CLAVIGER_CODE_DONE);
    claviger_cancel(options);
    CHECK(!claviger_open(path, options, &error) && failed(CLAVIGER_CODE_CANCELLED, &error, CLAVIGER_CODE_CANCELLED));
    claviger_options_free(options);
}

int main(int argc, char **argv) {
    CHECK(argc == 3 && strlen(claviger_version()) >= 5);
    look(argv[1]);
    read_and_write(argv[1]);
    refused(argv[1]);
    make(argv[2]);
    puts("done");
    return 0;
}
