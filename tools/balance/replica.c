/* SPDX-License-Identifier: Apache-2.0 */
/* The replicas: where they are, processes of those that are started here or over ssh, their end.
 * See balance.h.
 *
 * One that is started gets a key of its own on the first line of its standard input, whose end ends
 * it (--control): so none stays behind when the front is gone. It listens on any free port, or on
 * --replica_port and the next ones, and its first line says which. */
#include "balance.h"

#include "launch/launch.h"
#include "launch/runners.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TLS_NAME "replica.ds-serve.invalid" /* in the certificate of --replica_tls */

enum { PATH_ROOM = 4096, LINE_CEILING = 1 << 20, COMMAND_CEILING = 1 << 20 };

extern char **environ;

bool replica_has(const replica *r, const char *model)
{
    size_t i = 0;
    json_t *one = NULL;
    if (model[0] == '\0') {
        return true;
    }
    json_array_foreach(r->models, i, one)
    {
        const char *id = json_string_value(json_object_get(one, "id"));
        if (id != NULL && strcmp(id, model) == 0) {
            return true;
        }
    }
    return false;
}

bool replica_serves(const replica *r, const char *model)
{
    return r->state == REPLICA_UP && !r->stale && replica_has(r, model);
}

static json_t *base_of(const replica *r)
{
    size_t i = 0;
    json_t *one = NULL;
    json_array_foreach(r->models, i, one)
    {
        if (json_object_get(one, "parent") == NULL) {
            return one;
        }
    }
    return NULL;
}

const char *replica_base(const replica *r)
{
    return json_string_value(json_object_get(base_of(r), "id"));
}

const char *replica_folder(const replica *r)
{
    return json_string_value(json_object_get(base_of(r), "root"));
}

void replica_put_folder(replica *r, const char *path)
{
    (void)json_object_set_new(base_of(r), "root", json_string(path));
}

void replica_want(replica *r, const char *path)
{
    char *copy = strdup(path);
    free(r->wanted);
    r->wanted = copy;
}

void replica_fails(replica *r, replica_state state, const char *why)
{
    balance *b = r->b;
    const bool news = r->state != state;
    int64_t n = 0;
    if (r->state == REPLICA_ENDED ||
        (r->state == REPLICA_STARTS && r->own && !r->was_up && state == REPLICA_DOWN)) {
        return; /* it has said nothing yet; it may still load */
    }
    const int64_t moved = b->n_moved;
    r->state = state;
    (void)snprintf(r->why, sizeof r->why, "%s", why);
    call_stop(&r->probe);
    r->probe.place = CALL_NONE;
    /* one that says that it ends brings its requests to their end */
    const bool drains = strstr(why, "draining") != NULL;
    for (ask *a = b->running; a != NULL; a = a->next) {
        if (a->at == r && !drains) {
            ++n;
            ask_lost(a, why);
        }
    }
    if (news && !b->stop) {
        const int64_t went = b->n_moved - moved;
        ds_log(b->ctx, DS_LOG_WARN,
               "%s is out: %s; of its requests %lld went elsewhere, %lld were told", r->label, why,
               (long long)(went < n ? went : n), (long long)(went < n ? n - went : 0));
    }
    if (state == REPLICA_ENDED) {
        restart_plan(r);
    }
}

/* ---- addresses ---- */
static ds_status find_address(ds_ctx *ctx, replica *r)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    const int error = getaddrinfo(r->host, r->port, &hints, &r->address);
    return error == 0 ? DS_OK
                      : ds_fail(ctx, DS_ERR_ARG, "replica %zu: no address of %s: %s", r->index,
                                r->host, gai_strerror(error));
}

static void put_label(replica *r)
{
    const bool v6 = strchr(r->host, ':') != NULL;
    (void)snprintf(r->label, sizeof r->label, "replica %zu (%s://%s%.120s%s:%s)", r->index,
                   r->trust != NULL ? "https" : "http", v6 ? "[" : "", r->host, v6 ? "]" : "",
                   r->port);
}

/* ---- what it writes ---- */
static const char *end_of(pid_t pid, char *text, size_t size)
{
    int status = 0;
    char name[32];
    if (waitpid(pid, &status, 0) != pid) {
        (void)snprintf(text, size, "its process is gone");
    } else if (WIFSIGNALED(status)) {
        (void)snprintf(text, size, "its process ended by %s",
                       dsi_signal_name(WTERMSIG(status), name, sizeof name));
    } else {
        (void)snprintf(text, size, "its process ended with exit code %d", WEXITSTATUS(status));
    }
    return text;
}

/* "serving NAME on http[s]://HOST:PORT" */
static void read_first_line(replica *r, const char *line)
{
    const char *url = strstr(line, r->trust != NULL ? " on https://" : " on http://");
    const char *port = url != NULL ? strrchr(url, ':') : NULL;
    if (r->told || port == NULL || strncmp(line, "serving ", 8) != 0) {
        return;
    }
    r->told = true;
    (void)snprintf(r->port, sizeof r->port, "%.5s", port + 1);
    put_label(r);
    if (find_address(r->b->ctx, r) < 0) {
        ds_log(r->b->ctx, DS_LOG_WARN, "%s", ds_ctx_error(r->b->ctx));
    }
    r->probe_due = 0;
}

static void take_line(replica *r, bool is_err, const char *line)
{
    if (!is_err) {
        read_first_line(r, line);
    } else {
        (void)fprintf(stderr, "replica %zu: %s\n", r->index, line);
    }
}

/* false: it is closed. */
static bool take_output(replica *r, int fd, bool is_err)
{
    char data[4096];
    dsi_buf *line = &r->line[is_err];
    const ssize_t n = read(fd, data, sizeof data);
    if (n <= 0) {
        if (n == 0 && line->size > 0) {
            take_line(r, is_err, dsi_buf_text(line));
            dsi_buf_clear(line);
        }
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    }
    for (ssize_t i = 0; i < n; ++i) {
        if (data[i] == '\n') {
            take_line(r, is_err, dsi_buf_text(line));
            dsi_buf_clear(line);
        } else if (data[i] != '\0') {
            dsi_buf_putc(line, data[i]);
        }
    }
    return true;
}

void replica_hear(replica *r, short out, short err)
{
    char why[BALANCE_WHY];
    if (!r->own || r->state == REPLICA_ENDED) {
        return;
    }
    if (out != 0 && !take_output(r, r->process.out, false)) {
        (void)close(r->process.out);
        r->process.out = -1;
    }
    if (err != 0 && !take_output(r, r->process.err, true)) {
        (void)close(r->process.err);
        r->process.err = -1;
    }
    siginfo_t info = {0};
    const bool ended =
        waitid(P_PID, (id_t)r->process.pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == r->process.pid;
    if (ended && r->process.err < 0) { /* its last words were read */
        const pid_t pid = r->process.pid;
        r->process.pid = 0;
        r->refused =
            !r->was_up && info.si_code == CLD_EXITED && info.si_status == BALANCE_WRONG_USE;
        dsi_process_close(&r->process);
        replica_fails(r, REPLICA_ENDED, end_of(pid, why, sizeof why));
    }
}

/* ---- starting ---- */
/* Its own flags: those of a --replica, else those of the command line that are not the front's. */
static ds_status put_flags(ds_ctx *ctx, const balance *b, size_t k, const char *program,
                           int64_t port, bool remote, dsi_words *argv)
{
    const serve_options *o = b->o;
    dsi_words_add(argv, program);
    if (o->replica.n > 0) {
        DS_TRY(dsi_shell_split(ctx, "--replica", o->replica.items[k % o->replica.n], argv));
    } else {
        dsi_words_add_all(argv, &o->passed);
    }
    dsi_words_add(argv, "--control");
    dsi_words_add(argv, "--host");
    dsi_words_add(argv, remote ? "0.0.0.0" : "127.0.0.1");
    dsi_words_add(argv, "--port");
    dsi_words_addf(argv, "%lld", (long long)port);
    dsi_words_add(argv, "--max_connections"); /* all clients at one, and probes */
    dsi_words_addf(argv, "%lld", (long long)o->max_connections + 64);
    return dsi_words_check(ctx, argv);
}

/* What it reads first: its key, how many replicas its machine has, and, of https, certificate and
 * secret with bars for the ends of lines (serve/control.c). */
static void put_first_line(const replica *r, dsi_buf *line)
{
    const balance *b = r->b;
    dsi_buf_printf(line, "%s %zu", r->key, r->n_beside);
    if (r->trust != NULL) {
        const size_t at = line->size;
        dsi_buf_printf(line, "\t%s\t%s", b->replica_cert, b->replica_secret);
        for (size_t i = at; i < line->size; ++i) {
            line->data[i] = line->data[i] == '\n' ? '|' : line->data[i];
        }
    }
    dsi_buf_putc(line, '\n');
}

const char *replica_tls_name(const replica *r)
{
    return r->own ? TLS_NAME : r->host;
}

ds_status replica_start(ds_ctx *ctx, replica *r)
{
    balance *b = r->b;
    char secret[DSI_SECRET_TEXT];
    dsi_buf line = dsi_buf_make(LINE_CEILING);
    const dsi_command command = {.program = r->program,
                                 .argv = &r->argv,
                                 .env = &b->env,
                                 .memory_node = -1,
                                 .wants_control = true};
    DS_TRY(dsi_make_secret(ctx, secret));
    (void)snprintf(r->key, sizeof r->key, "%s", secret);
    DS_TRY(dsi_process_start(ctx, &command, &r->process));
    put_first_line(r, &line);
    const bool sent =
        !line.failed && write(r->process.control, line.data, line.size) == (ssize_t)line.size;
    dsi_buf_free(&line);
    if (!sent) {
        const ds_status status = ds_fail(ctx, DS_ERR_IO, "replica %zu: its key cannot be sent: %s",
                                         r->index, strerror(errno));
        dsi_process_signal(&r->process, SIGKILL);
        (void)waitpid(r->process.pid, NULL, 0);
        r->process.pid = 0;
        dsi_process_close(&r->process);
        return status;
    }
    r->own = true;
    return DS_OK;
}

static ds_status self_path(ds_ctx *ctx, char *path)
{
    const ssize_t n = readlink("/proc/self/exe", path, PATH_ROOM - 1);
    if (n < 0) {
        return ds_fail(ctx, DS_ERR_IO, "where this program lies is unknown: %s", strerror(errno));
    }
    path[n] = '\0';
    return DS_OK;
}

static ds_status start_here(ds_ctx *ctx, replica *r, size_t slot, size_t n_beside)
{
    char self[PATH_ROOM];
    const int64_t base = r->b->o->replica_port;
    DS_TRY(self_path(ctx, self));
    r->program = strdup(self);
    r->n_beside = n_beside;
    r->trust = r->b->replica_trust;
    (void)snprintf(r->host, sizeof r->host, "127.0.0.1");
    DS_TRY(
        put_flags(ctx, r->b, r->index, self, base > 0 ? base + (int64_t)slot : 0, false, &r->argv));
    return r->program == NULL ? ds_fail(ctx, DS_ERR_NOMEM, "no memory") : replica_start(ctx, r);
}

static ds_status start_there(ds_ctx *ctx, replica *r, const dsi_host *host, size_t slot)
{
    balance *b = r->b;
    char self[PATH_ROOM];
    char folder[PATH_ROOM];
    dsi_words words = {0};
    const dsi_launch_options options = {.ssh_port = b->o->ssh_port};
    const int64_t base = b->o->replica_port;
    r->trust = b->replica_trust;
    (void)snprintf(r->host, sizeof r->host, "%s", host->name);
    DS_TRY(self_path(ctx, self));
    DS_TRY(dsi_program_find(ctx, "ssh", &r->program));
    if (getcwd(folder, sizeof folder) == NULL) {
        return ds_fail(ctx, DS_ERR_IO, "the folder to work in is unknown: %s", strerror(errno));
    }
    dsi_ssh_command(&options, &b->ssh_args, &r->argv);
    dsi_ssh_target(host, &r->argv);
    ds_status status =
        put_flags(ctx, b, r->index, self, base > 0 ? base + (int64_t)slot : 0, true, &words);
    dsi_buf text = dsi_buf_make(COMMAND_CEILING);
    dsi_buf_puts(&text, "cd ");
    dsi_shell_quote(&text, folder);
    dsi_buf_puts(&text, " && exec ");
    dsi_shell_join(&text, &words, 0);
    dsi_words_take(&r->argv, &text);
    dsi_words_free(&words);
    DS_TRY(status);
    DS_TRY(dsi_words_check(ctx, &r->argv));
    r->n_beside = host->n_slots;
    return replica_start(ctx, r);
}

static replica *add(balance *b)
{
    replica *r = &b->replicas[b->n];
    *r = (replica){.b = b, .index = b->n, .probe = {.link = {.fd = -1}}};
    r->process.out = r->process.err = r->process.control = -1;
    r->line[0] = r->line[1] = dsi_buf_make(LINE_CEILING);
    (void)snprintf(r->label, sizeof r->label, "replica %zu", r->index);
    b->n += 1;
    return r;
}

/* What a flag names is not as it should be: the message names the flag, too. */
static ds_status wrong_use(ds_ctx *ctx, const char *flag, ds_status status)
{
    char why[2048];
    if (status >= 0 || status == DS_ERR_NOMEM) {
        return status;
    }
    (void)snprintf(why, sizeof why, "%s", ds_ctx_error(ctx));
    return strstr(why, "--") == why ? ds_fail(ctx, DS_ERR_ARG, "%s", why)
                                    : ds_fail(ctx, DS_ERR_ARG, "--%s: %s", flag, why);
}

/* Whom upstreams of https are trusted by. */
static ds_status trust_upstreams(ds_ctx *ctx, balance *b)
{
    const dsi_trust_params params = {
        .ca_file = b->o->upstream_cacert,
        .insecure = b->o->upstream_insecure,
        .hint = "--upstream_cacert FILE says whom to trust, --upstream_insecure trusts any"};
    return b->upstream_trust != NULL
               ? DS_OK
               : wrong_use(ctx, b->o->upstream_cacert != NULL ? "upstream_cacert" : "upstream",
                           dsi_trust_open(ctx, &params, &b->upstream_trust));
}

static ds_status add_upstream(ds_ctx *ctx, balance *b, const char *url, const char *key)
{
    load_target t = {0};
    DS_TRY(load_target_read(ctx, "--upstream", url, &t));
    if (t.path[0] != '\0') {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "--upstream %s: expected http[s]://HOST:PORT, without a path", url);
    }
    if (t.tls) {
        DS_TRY(trust_upstreams(ctx, b));
    }
    replica *r = add(b);
    r->trust = t.tls ? b->upstream_trust : NULL;
    (void)snprintf(r->host, sizeof r->host, "%s", t.host);
    (void)snprintf(r->port, sizeof r->port, "%s", t.port);
    (void)snprintf(r->key, sizeof r->key, "%s", key);
    put_label(r);
    return find_address(ctx, r);
}

static ds_status open_upstreams(ds_ctx *ctx, balance *b)
{
    const serve_options *o = b->o;
    dsi_buf file = dsi_buf_make(1 << 16);
    ds_status status = DS_OK;
    if (o->upstream_key_file != NULL) {
        status = wrong_use(ctx, "upstream_key_file",
                           dsi_buf_read_file(ctx, o->upstream_key_file, &file));
        const size_t n = strcspn(dsi_buf_text(&file), "\r\n");
        if (status >= 0 && (n == 0 || n >= sizeof b->replicas[0].key)) {
            status = ds_fail(ctx, DS_ERR_ARG,
                             "--upstream_key_file %s: expected a key in its first "
                             "line",
                             o->upstream_key_file);
        } else if (status >= 0) {
            file.data[n] = '\0';
        }
    }
    for (size_t i = 0; i < o->upstream.n && status >= 0; ++i) {
        status = wrong_use(ctx, "upstream",
                           add_upstream(ctx, b, o->upstream.items[i], dsi_buf_text(&file)));
    }
    dsi_buf_free(&file);
    if (status >= 0 && b->upstream_trust == NULL &&
        (o->upstream_cacert != NULL || o->upstream_insecure)) {
        status =
            ds_fail(ctx, DS_ERR_ARG, "--%s goes with an --upstream of https://, and there is none",
                    o->upstream_cacert != NULL ? "upstream_cacert" : "upstream_insecure");
    }
    return status;
}

/* One certificate for all that are started, which travels with their keys; nobody else's is
 * taken. */
static ds_status trust_replicas(ds_ctx *ctx, balance *b)
{
    if (!b->o->replica_tls) {
        return DS_OK;
    }
    const dsi_trust_params params = {.ca_text = b->replica_cert};
    DS_TRY(dsi_trust_self_sign(ctx, TLS_NAME, b->replica_cert, b->replica_secret));
    return dsi_trust_open(ctx, &params, &b->replica_trust);
}

static ds_status open_hosts(ds_ctx *ctx, balance *b, const dsi_hosts *hosts)
{
    for (size_t i = 0; i < hosts->n; ++i) {
        for (uint32_t k = 0; k < hosts->items[i].n_slots; ++k) {
            DS_TRY(start_there(ctx, add(b), &hosts->items[i], hosts->items[i].slots[k]));
        }
    }
    return DS_OK;
}

static ds_status open_all(ds_ctx *ctx, balance *b, const dsi_hosts *hosts, size_t n_here)
{
    const serve_options *o = b->o;
    const char *append = getenv("PDSH_SSH_ARGS_APPEND");
    const size_t n = n_here + o->upstream.n + dsi_hosts_n_ranks(hosts);
    if (n > BALANCE_MOST) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--replicas, --replica, --hostfile and --upstream come to %zu replicas; a "
                       "front has at most %d",
                       n, BALANCE_MOST);
    }
    b->replicas = calloc(n + 1, sizeof *b->replicas);
    b->prefixes = calloc(1, sizeof *b->prefixes);
    b->folders = json_object();
    dsi_env_inherit(&b->env, environ);
    if (b->replicas == NULL || b->prefixes == NULL || b->folders == NULL || b->env.failed) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for %zu replicas", n);
    }
    if (append != NULL) {
        DS_TRY(dsi_shell_split(ctx, "PDSH_SSH_ARGS_APPEND", append, &b->ssh_args));
    }
    DS_TRY(open_upstreams(ctx, b)); /* what may be wrong before anything is started */
    DS_TRY(wrong_use(ctx, "replica_tls", trust_replicas(ctx, b)));
    for (size_t i = 0; i < n_here; ++i) {
        DS_TRY(start_here(ctx, add(b), i, n_here));
    }
    return open_hosts(ctx, b, hosts);
}

ds_status replicas_open(ds_ctx *ctx, balance *b)
{
    const serve_options *o = b->o;
    dsi_hosts hosts = {0};
    size_t n_here = (size_t)o->replicas;
    if (o->hostfile == NULL && o->replica.n > 0) {
        n_here = o->replica.n;
    }
    ds_status status = DS_OK;
    if (o->hostfile != NULL) {
        status = wrong_use(ctx, "hostfile", dsi_hosts_read(ctx, o->hostfile, &hosts));
        status = status < 0 ? status : dsi_hosts_select(ctx, &hosts, o->include, o->exclude);
        if (status >= 0 && o->slots > 0 && o->slots != (int64_t)dsi_hosts_n_ranks(&hosts)) {
            status = ds_fail(ctx, DS_ERR_ARG,
                             "%s: replica_num is %lld, but hostfile %s has %u slots; --include "
                             "chooses among them",
                             o->sizes.offload.config_path, (long long)o->slots, o->hostfile,
                             dsi_hosts_n_ranks(&hosts));
        }
        if (status >= 0 && o->replica.n > dsi_hosts_n_ranks(&hosts)) {
            status = ds_fail(ctx, DS_ERR_ARG, "--replica names %zu, but --hostfile %s has %u slots",
                             o->replica.n, o->hostfile, dsi_hosts_n_ranks(&hosts));
        }
    }
    status = status < 0 ? status : open_all(ctx, b, &hosts, n_here);
    dsi_hosts_free(&hosts);
    return status;
}

/* ---- the end ---- */
static bool wait_all(balance *b, double seconds)
{
    const struct timespec tick = {0, 20000000};
    for (double waited = 0; waited <= seconds; waited += 0.02) {
        bool all = true;
        for (size_t i = 0; i < b->n; ++i) {
            replica *r = &b->replicas[i];
            if (r->own && r->state != REPLICA_ENDED) {
                replica_hear(r, r->process.out >= 0, r->process.err >= 0);
                all = all && r->state == REPLICA_ENDED;
            }
        }
        if (all) {
            return true;
        }
        (void)nanosleep(&tick, NULL);
    }
    return false;
}

void replicas_close(balance *b)
{
    for (size_t i = 0; i < b->n; ++i) {
        replica *r = &b->replicas[i];
        if (r->own && r->process.control >= 0) { /* its end ends the replica */
            (void)close(r->process.control);
            r->process.control = -1;
        }
    }
    /* ours have nothing left to do, but those that were stopped, or still load */
    for (int k = 0; k < 2 && !wait_all(b, k == 0 ? (double)b->o->drain_seconds + 5 : 5); ++k) {
        for (size_t i = 0; i < b->n; ++i) {
            if (b->replicas[i].own && b->replicas[i].state != REPLICA_ENDED) {
                dsi_process_signal(&b->replicas[i].process, SIGKILL);
            }
        }
    }
    for (size_t i = 0; i < b->n; ++i) {
        replica *r = &b->replicas[i];
        dsi_process_close(&r->process);
        call_free(&r->probe);
        dsi_buf_free(&r->probed);
        dsi_buf_free(&r->metrics);
        dsi_buf_free(&r->line[0]);
        dsi_buf_free(&r->line[1]);
        json_decref(r->models);
        dsi_words_free(&r->argv);
        free(r->program);
        free(r->wanted);
        if (r->address != NULL) {
            freeaddrinfo(r->address);
        }
    }
    dsi_trust_close(&b->upstream_trust);
    dsi_trust_close(&b->replica_trust);
    free(b->replicas);
    free(b->prefixes);
    json_decref(b->folders);
    dsi_words_free(&b->env);
    dsi_words_free(&b->ssh_args);
}
