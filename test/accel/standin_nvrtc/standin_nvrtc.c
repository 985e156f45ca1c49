/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for NVIDIA's libnvrtc.so.13, for tests: what the NVRTC documentation says of the
 * functions that nvrtc_api.h lists, and no more. The compiler of the host (`cc`, as C++) makes a
 * shared object of the source behind device_language.h, which is the "machine code": the stand-in
 * of the driver (standin/) loads it and runs its kernels on the host layer.
 *
 * Refused as documented: no program, no source, unknown options (with a line of the log), an
 * architecture that is not of the list. Stricter: a program is compiled once; code is asked for
 * behind a success; no architecture is an error.
 *
 * DS_NVRTC_STANDIN="count=FILE,wait=FILE,fail=CODE": each compilation adds a line to a file; then
 * it waits until another file is there; it ends with that code.
 */
#include "accel/cuda/driver/nvrtc_api.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STANDIN_API                     __attribute__((visibility("default")))
#define X(type, member, symbol, params) STANDIN_API type symbol params;
DSC_NVRTC_LIST(X)
#undef X

enum { PATH_BYTES = 512, MOST_HEADERS = 8, MOST_OPTIONS = 128, MOST_NAME = 128 };

struct _nvrtcProgram {
    char *source, *name;
    char *headers[MOST_HEADERS], *include_names[MOST_HEADERS];
    int n_headers;
    bool compiled; /* whether it went well or not */
    char *log;     /* with its end; NULL: "" */
    char *code;    /* NULL: none */
    size_t code_bytes;
};

extern char **environ;

const char *nvrtcGetErrorString(dsc_nvrtc_result result)
{
    static const char *const names[] = {"NVRTC_SUCCESS",
                                        "NVRTC_ERROR_OUT_OF_MEMORY",
                                        "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
                                        "NVRTC_ERROR_INVALID_INPUT",
                                        "NVRTC_ERROR_INVALID_PROGRAM",
                                        "NVRTC_ERROR_INVALID_OPTION",
                                        "NVRTC_ERROR_COMPILATION",
                                        "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE"};
    const bool known = result >= 0 && result < (int)(sizeof names / sizeof names[0]);
    return known                                ? names[result]
           : result == DSC_NVRTC_INTERNAL_ERROR ? "NVRTC_ERROR_INTERNAL_ERROR"
                                                : "NVRTC_ERROR unknown";
}

dsc_nvrtc_result nvrtcVersion(int *major_out, int *minor_out)
{
    if (major_out == NULL || minor_out == NULL) {
        return DSC_NVRTC_INVALID_INPUT;
    }
    *major_out = 13;
    *minor_out = 0;
    return DSC_NVRTC_SUCCESS;
}

static const int all_archs[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
enum { N_ARCHS = sizeof all_archs / sizeof all_archs[0] };

dsc_nvrtc_result nvrtcGetNumSupportedArchs(int *n_out)
{
    if (n_out == NULL) {
        return DSC_NVRTC_INVALID_INPUT;
    }
    *n_out = N_ARCHS;
    return DSC_NVRTC_SUCCESS;
}

dsc_nvrtc_result nvrtcGetSupportedArchs(int *archs_out)
{
    if (archs_out == NULL) {
        return DSC_NVRTC_INVALID_INPUT;
    }
    memcpy(archs_out, all_archs, sizeof all_archs);
    return DSC_NVRTC_SUCCESS;
}

dsc_nvrtc_result nvrtcCreateProgram(dsc_nvrtc_program *program_out, const char *source,
                                    const char *name, int n_headers, const char *const *headers,
                                    const char *const *include_names)
{
    if (program_out == NULL || source == NULL || n_headers < 0 || n_headers > MOST_HEADERS ||
        (n_headers > 0 && (headers == NULL || include_names == NULL))) {
        return DSC_NVRTC_INVALID_INPUT;
    }
    dsc_nvrtc_program p = calloc(1, sizeof *p);
    if (p == NULL) {
        return DSC_NVRTC_OUT_OF_MEMORY;
    }
    p->source = strdup(source);
    p->name = strdup(name != NULL && name[0] != '\0' ? name : "default_program");
    p->n_headers = n_headers;
    for (int i = 0; i < n_headers; ++i) {
        p->headers[i] = strdup(headers[i]);
        p->include_names[i] = strdup(include_names[i]);
    }
    *program_out = p;
    return DSC_NVRTC_SUCCESS;
}

dsc_nvrtc_result nvrtcDestroyProgram(dsc_nvrtc_program *program)
{
    if (program == NULL || *program == NULL) {
        return DSC_NVRTC_INVALID_PROGRAM;
    }
    dsc_nvrtc_program p = *program;
    for (int i = 0; i < p->n_headers; ++i) {
        free(p->headers[i]);
        free(p->include_names[i]);
    }
    free(p->source);
    free(p->name);
    free(p->log);
    free(p->code);
    free(p);
    *program = NULL;
    return DSC_NVRTC_SUCCESS;
}

/* ---- options ------------------------------------------------------------------------------- */

/* Of DS_NVRTC_STANDIN, up to the comma; "" without it. */
static void option_of(const char *key, char text_out[PATH_BYTES])
{
    const char *all = getenv("DS_NVRTC_STANDIN");
    const char *at = all != NULL ? strstr(all, key) : NULL;
    const size_t n = at != NULL ? strcspn(at + strlen(key), ",") : 0;
    (void)snprintf(text_out, PATH_BYTES, "%.*s", (int)n, at != NULL ? at + strlen(key) : "");
}

static bool is_arch(const char *option)
{
    static const char key[] = "--gpu-architecture=sm_";
    for (int i = 0; i < N_ARCHS && strncmp(option, key, sizeof key - 1) == 0; ++i) {
        char *end = NULL;
        if (strtol(option + sizeof key - 1, &end, 10) == all_archs[i] && *end == '\0') {
            return true;
        }
    }
    return false;
}

static bool is_known(const char *option)
{
    static const char *const known[] = {"--std=c++17", "--fmad=false",    "--fmad=true",
                                        "-fmad=false", "--use_fast_math", "-lineinfo",
                                        "-w",          "--ftz=false"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i) {
        if (strcmp(option, known[i]) == 0) {
            return true;
        }
    }
    return strncmp(option, "-D", 2) == 0 || strncmp(option, "--maxrregcount=", 15) == 0;
}

static dsc_nvrtc_result refuse(dsc_nvrtc_program p, const char *why, const char *option)
{
    (void)asprintf(&p->log, "nvrtc: error: %s%s\n", why, option);
    return DSC_NVRTC_INVALID_OPTION;
}

/* ---- the compiler -------------------------------------------------------------------------- */

static bool write_file(const char *folder, const char *name, const char *const *texts, int n)
{
    char path[PATH_BYTES * 2];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "we");
    bool done = file != NULL;
    for (int i = 0; i < n && done; ++i) {
        done = fputs(texts[i], file) >= 0;
    }
    return file != NULL && fclose(file) == 0 && done;
}

static char *read_file(const char *folder, const char *name, size_t *bytes_out)
{
    char path[PATH_BYTES * 2];
    struct stat st;
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    char *bytes =
        file != NULL && fstat(fileno(file), &st) == 0 ? malloc((size_t)st.st_size + 1) : NULL;
    if (bytes != NULL) {
        *bytes_out = fread(bytes, 1, (size_t)st.st_size, file);
        bytes[*bytes_out] = '\0';
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return bytes;
}

/* A function standin_kernel_NAME for each __global__ NAME. */
static char *entries_of(const char *source)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    for (const char *at = strstr(source, "__global__"); at != NULL && out != NULL;
         at = strstr(at + 1, "__global__")) {
        const char *bracket = strchr(at, '(');
        const char *bounds = strstr(at, "__launch_bounds__");
        if (bounds != NULL && bounds < bracket) {
            bracket = strchr(strchr(bounds, ')'), '(');
        }
        const char *end = bracket;
        while (end != NULL && end > at && isspace((unsigned char)end[-1])) {
            --end;
        }
        const char *name = end;
        while (name != NULL && name > at && (isalnum((unsigned char)name[-1]) || name[-1] == '_')) {
            --name;
        }
        if (name != NULL && name < end) {
            (void)fprintf(
                out,
                "\nextern \"C\" __attribute__((visibility(\"default\"))) void "
                "standin_kernel_%.*s(const void *memory) { standin_call(%.*s, memory); }\n",
                (int)(end - name), name, (int)(end - name), name);
        }
    }
    if (out != NULL) {
        (void)fclose(out);
    }
    return text;
}

static int run_compiler(const char *folder, int n_options, const char *const *options)
{
    char include[PATH_BYTES * 2];
    char input[PATH_BYTES * 2];
    char output[PATH_BYTES * 2];
    char log[PATH_BYTES * 2];
    (void)snprintf(include, sizeof include, "-I%s", folder);
    (void)snprintf(input, sizeof input, "%s/source.cc", folder);
    (void)snprintf(output, sizeof output, "%s/code.so", folder);
    (void)snprintf(log, sizeof log, "%s/log", folder);
    const char *args[MOST_OPTIONS + 24] = {"cc",
                                           "-x",
                                           "c++",
                                           "-std=c++17",
                                           "-O1",
                                           "-ffp-contract=off",
                                           "-fPIC",
                                           "-shared",
                                           "-fvisibility=hidden",
                                           "-I" DS_SOURCE_DIR "/test",
                                           "-I" DS_SOURCE_DIR "/src",
                                           "-include",
                                           "accel/standin_nvrtc/device_language.h",
                                           include,
                                           "-o",
                                           output,
                                           input};
    int n = 17;
    for (int i = 0; i < n_options; ++i) {
        if (strncmp(options[i], "-D", 2) == 0) {
            args[n++] = options[i];
        }
    }
    posix_spawn_file_actions_t actions;
    pid_t child = 0;
    int code = -1;
    struct rlimit limit; /* a full disk is the cache's, in tests */
    (void)getrlimit(RLIMIT_FSIZE, &limit);
    (void)setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit.rlim_max, limit.rlim_max});
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)posix_spawn_file_actions_adddup2(&actions, 1, 2);
    const int failed =
        posix_spawnp(&child, "cc", &actions, NULL, (char *const *)(uintptr_t)args, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)setrlimit(RLIMIT_FSIZE, &limit);
    while (failed == 0 && waitpid(child, &code, 0) < 0 && errno == EINTR) {
    }
    return failed != 0 ? -1 : code;
}

static void clear_folder(const dsc_nvrtc_program p, const char *folder)
{
    char path[PATH_BYTES * 2];
    static const char *const names[] = {"source.cc", "code.so", "log"};
    for (int i = 0; i < 3 + p->n_headers; ++i) {
        (void)snprintf(path, sizeof path, "%s/%s", folder,
                       i < 3 ? names[i] : p->include_names[i - 3]);
        (void)unlink(path);
    }
    (void)rmdir(folder);
}

static dsc_nvrtc_result compile_in(dsc_nvrtc_program p, const char *folder, int n_options,
                                   const char *const *options)
{
    size_t n = 0;
    char line[MOST_NAME + 16];
    char *entries = entries_of(p->source);
    (void)snprintf(line, sizeof line, "#line 1 \"%.100s\"\n", p->name);
    const char *const texts[] = {line, p->source, "\n#line 1 \"entries\"\n",
                                 entries != NULL ? entries : ""};
    bool ready = write_file(folder, "source.cc", texts, 4);
    for (int i = 0; i < p->n_headers && ready; ++i) {
        ready = write_file(folder, p->include_names[i], (const char *const *)&p->headers[i], 1);
    }
    free(entries);
    const int code = ready ? run_compiler(folder, n_options, options) : -1;
    p->log = read_file(folder, "log", &n);
    if (code == 0) {
        p->code = read_file(folder, "code.so", &p->code_bytes);
    }
    return code < 0          ? DSC_NVRTC_BUILTIN_OPERATION_FAILURE
           : p->code != NULL ? DSC_NVRTC_SUCCESS
                             : DSC_NVRTC_COMPILATION;
}

/* What tests ask for. */
static int note(void)
{
    char path[PATH_BYTES];
    option_of("count=", path);
    FILE *file = path[0] != '\0' ? fopen(path, "ae") : NULL;
    if (file != NULL) {
        (void)fprintf(file, "%ld\n", (long)getpid());
        (void)fclose(file);
    }
    option_of("wait=", path);
    while (path[0] != '\0' && access(path, F_OK) != 0) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    option_of("fail=", path);
    return (int)strtol(path, NULL, 10);
}

dsc_nvrtc_result nvrtcCompileProgram(dsc_nvrtc_program p, int n_options, const char *const *options)
{
    bool has_arch = false;
    char folder[PATH_BYTES];
    const char *temporary = getenv("TMPDIR");
    if (p == NULL || p->compiled) {
        return DSC_NVRTC_INVALID_PROGRAM;
    }
    if (n_options < 0 || n_options > MOST_OPTIONS || (n_options > 0 && options == NULL)) {
        return DSC_NVRTC_INVALID_INPUT;
    }
    p->compiled = true;
    for (int i = 0; i < n_options; ++i) {
        const bool arch = strncmp(options[i], "--gpu-architecture=", 19) == 0;
        has_arch = has_arch || arch;
        if (arch && !is_arch(options[i])) {
            return refuse(p, "invalid value for --gpu-architecture (-arch): ", options[i]);
        }
        if (!arch && !is_known(options[i])) {
            return refuse(p, "unrecognized option found: ", options[i]);
        }
    }
    const int asked = note();
    if (asked != 0 || !has_arch) {
        return asked != 0 ? asked : refuse(p, "no architecture", "");
    }
    (void)snprintf(folder, sizeof folder, "%s/standin_nvrtc_XXXXXX",
                   temporary != NULL ? temporary : "/tmp");
    if (mkdtemp(folder) == NULL) {
        return DSC_NVRTC_BUILTIN_OPERATION_FAILURE;
    }
    const dsc_nvrtc_result result = compile_in(p, folder, n_options, options);
    clear_folder(p, folder);
    return result;
}

/* ---- what came of it ----------------------------------------------------------------------- */

dsc_nvrtc_result nvrtcGetProgramLogSize(dsc_nvrtc_program p, size_t *bytes_out)
{
    if (p == NULL || bytes_out == NULL) {
        return p == NULL ? DSC_NVRTC_INVALID_PROGRAM : DSC_NVRTC_INVALID_INPUT;
    }
    *bytes_out = (p->log != NULL ? strlen(p->log) : 0) + 1;
    return DSC_NVRTC_SUCCESS;
}

dsc_nvrtc_result nvrtcGetProgramLog(dsc_nvrtc_program p, char *log_out)
{
    if (p == NULL || log_out == NULL) {
        return p == NULL ? DSC_NVRTC_INVALID_PROGRAM : DSC_NVRTC_INVALID_INPUT;
    }
    (void)strcpy(log_out, p->log != NULL ? p->log : "");
    return DSC_NVRTC_SUCCESS;
}

dsc_nvrtc_result nvrtcGetCUBINSize(dsc_nvrtc_program p, size_t *bytes_out)
{
    if (p == NULL || p->code == NULL) {
        return DSC_NVRTC_INVALID_PROGRAM;
    }
    if (bytes_out == NULL) {
        return DSC_NVRTC_INVALID_INPUT;
    }
    *bytes_out = p->code_bytes;
    return DSC_NVRTC_SUCCESS;
}

dsc_nvrtc_result nvrtcGetCUBIN(dsc_nvrtc_program p, char *code_out)
{
    if (p == NULL || p->code == NULL) {
        return DSC_NVRTC_INVALID_PROGRAM;
    }
    if (code_out == NULL) {
        return DSC_NVRTC_INVALID_INPUT;
    }
    memcpy(code_out, p->code, p->code_bytes);
    return DSC_NVRTC_SUCCESS;
}
