/* SPDX-License-Identifier: Apache-2.0 */
/* The module of TLS by GnuTLS: a client's sessions, and what is wrong with a certificate in words.
 * See io/tls_module.h. */
#include "io/tls_module.h"

#include <arpa/inet.h>
#include <errno.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum {
    NAME_BYTES = 256,
    FIRST_BYTES = 5,
    SERIAL_BYTES = 16,
    MOST_ROUNDS = 16,
    DAY = 24 * 3600,
    YEARS = 10
};

struct dsi_tls_trust {
    gnutls_certificate_credentials_t credentials;
    bool check;
};

struct dsi_tls_session {
    gnutls_session_t tls;
    int fd, error;     /* errno of the socket's last failure; 0: none */
    bool began, shook; /* the handshake has begun; is done */
    char host[NAME_BYTES];
    char first[FIRST_BYTES + 1]; /* bytes that came */
    size_t n_first;
};

static void say(char *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(char *error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(error, DSI_TLS_ERROR_BYTES, format, args);
    va_end(args);
}

static void add(char *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(char *error, const char *format, ...)
{
    va_list args;
    const size_t used = strlen(error);
    (void)snprintf(error + used, DSI_TLS_ERROR_BYTES - used, "%s", used > 0 ? "; " : "");
    const size_t at = strlen(error);
    va_start(args, format);
    (void)vsnprintf(error + at, DSI_TLS_ERROR_BYTES - at, format, args);
    va_end(args);
}

/* ---- whom to trust ---- */
static void distrust(dsi_tls_trust *trust)
{
    gnutls_certificate_free_credentials(trust->credentials);
    free(trust);
}

static bool take_authorities(dsi_tls_trust *t, const char *file, const char *text, char *error)
{
    if (file == NULL && text == NULL) {
        if (gnutls_certificate_set_x509_system_trust(t->credentials) <= 0) {
            say(error, "this machine has no certificates of authorities (package ca-certificates)");
            return false;
        }
        return true;
    }
    const gnutls_datum_t data = {(unsigned char *)(uintptr_t)text,
                                 text != NULL ? (unsigned)strlen(text) : 0};
    const int n =
        file != NULL
            ? gnutls_certificate_set_x509_trust_file(t->credentials, file, GNUTLS_X509_FMT_PEM)
            : gnutls_certificate_set_x509_trust_mem(t->credentials, &data, GNUTLS_X509_FMT_PEM);
    if (n <= 0) {
        say(error, "%.300s: %s", file != NULL ? file : "a certificate",
            n == GNUTLS_E_FILE_ERROR ? "it cannot be read"
                                     : "there is no certificate in PEM in it");
    }
    return n > 0;
}

static dsi_tls_trust *make_trust(const char *ca_file, const char *ca_text, bool check, char *error)
{
    dsi_tls_trust *t = calloc(1, sizeof *t);
    if (t == NULL || gnutls_certificate_allocate_credentials(&t->credentials) < 0) {
        say(error, "no memory for certificates");
        free(t);
        return NULL;
    }
    t->check = check;
    if (check && !take_authorities(t, ca_file, ca_text, error)) {
        distrust(t);
        return NULL;
    }
    return t;
}

/* ---- the socket ---- */
static ssize_t pull(gnutls_transport_ptr_t of, void *data, size_t n)
{
    dsi_tls_session *s = of;
    const ssize_t got = recv(s->fd, data, n, 0);
    for (ssize_t i = 0; i < got && s->n_first < FIRST_BYTES; ++i) {
        s->first[s->n_first++] = ((const char *)data)[i];
    }
    if (got < 0) {
        s->error = errno == EAGAIN || errno == EINTR ? 0 : errno;
        gnutls_transport_set_errno(s->tls, errno);
    }
    return got;
}

static ssize_t push(gnutls_transport_ptr_t of, const void *data, size_t n)
{
    dsi_tls_session *s = of;
    const ssize_t sent = send(s->fd, data, n, MSG_NOSIGNAL);
    if (sent < 0) {
        s->error = errno == EAGAIN || errno == EINTR ? 0 : errno;
        gnutls_transport_set_errno(s->tls, errno);
    }
    return sent;
}

/* ---- sessions ---- */
static void end_session(dsi_tls_session *s)
{
    if (s->shook) {
        (void)gnutls_bye(s->tls, GNUTLS_SHUT_WR); /* where the socket takes it at once */
    }
    gnutls_deinit(s->tls);
    free(s);
}

static bool is_address(const char *host)
{
    unsigned char bytes[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, host, bytes) == 1 || inet_pton(AF_INET6, host, bytes) == 1;
}

static int set_up(dsi_tls_session *s, const dsi_tls_trust *trust)
{
    int code = gnutls_set_default_priority(s->tls);
    if (code >= 0) {
        code = gnutls_credentials_set(s->tls, GNUTLS_CRD_CERTIFICATE, trust->credentials);
    }
    if (code >= 0 && !is_address(s->host)) {
        code = gnutls_server_name_set(s->tls, GNUTLS_NAME_DNS, s->host, strlen(s->host));
    }
    if (trust->check) {
        gnutls_session_set_verify_cert(s->tls, s->host, 0);
    }
    gnutls_transport_set_ptr(s->tls, s);
    gnutls_transport_set_pull_function(s->tls, pull);
    gnutls_transport_set_push_function(s->tls, push);
    gnutls_handshake_set_timeout(s->tls, 0); /* who polls has limits of its own */
    return code;
}

static dsi_tls_session *begin(dsi_tls_trust *trust, int fd, const char *host, char *error)
{
    dsi_tls_session *s = calloc(1, sizeof *s);
    int code = GNUTLS_E_MEMORY_ERROR;
    if (s == NULL ||
        (code = gnutls_init(&s->tls, GNUTLS_CLIENT | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL)) < 0) {
        say(error, "TLS cannot begin: %s", gnutls_strerror(code));
        free(s);
        return NULL;
    }
    s->fd = fd;
    (void)snprintf(s->host, sizeof s->host, "%s", host);
    code = set_up(s, trust);
    if (code < 0) {
        say(error, "TLS cannot begin: %s", gnutls_strerror(code));
        end_session(s);
        return NULL;
    }
    return s;
}

/* ---- what is wrong ---- */
static void put_day(char text[16], time_t at)
{
    struct tm parts;
    if (gmtime_r(&at, &parts) == NULL || strftime(text, 16, "%Y-%m-%d", &parts) == 0) {
        (void)snprintf(text, 16, "?");
    }
}

/* The names and addresses that a certificate is for. */
static void put_names(char *text, size_t size, gnutls_x509_crt_t crt)
{
    size_t used = 0;
    char name[NAME_BYTES];
    text[0] = '\0';
    for (unsigned i = 0; used + 1 < size; ++i) {
        size_t n = sizeof name - 1;
        const int type = gnutls_x509_crt_get_subject_alt_name(crt, i, name, &n, NULL);
        if (type == GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE) {
            break;
        }
        if (type == GNUTLS_SAN_IPADDRESS && (n == 4 || n == 16)) {
            char bytes[16];
            memcpy(bytes, name, n);
            (void)inet_ntop(n == 4 ? AF_INET : AF_INET6, bytes, name, sizeof name);
        } else if (type == GNUTLS_SAN_DNSNAME) {
            name[n] = '\0';
        } else {
            continue;
        }
        used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", name);
    }
    if (text[0] == '\0') {
        size_t n = size;
        if (gnutls_x509_crt_get_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, 0, text, &n) < 0) {
            (void)snprintf(text, size, "nobody");
        }
    }
}

/* Each thing that is wrong, for there may be several. */
static void put_faults(char *error, unsigned status, gnutls_x509_crt_t crt, const char *host)
{
    char text[NAME_BYTES];
    char day[16];
    if ((status & GNUTLS_CERT_EXPIRED) != 0) {
        put_day(day, gnutls_x509_crt_get_expiration_time(crt));
        add(error, "the server's certificate, or one that it rests on, has expired (its own: %s)",
            day);
    }
    if ((status & GNUTLS_CERT_NOT_ACTIVATED) != 0) {
        put_day(day, gnutls_x509_crt_get_activation_time(crt));
        add(error,
            "the server's certificate, or one that it rests on, is not valid yet (its own: from "
            "%s)",
            day);
    }
    if ((status & GNUTLS_CERT_UNEXPECTED_OWNER) != 0) {
        put_names(text, sizeof text, crt);
        add(error, "the server's certificate is for %s, not for %s", text, host);
    }
    if ((status & GNUTLS_CERT_SIGNER_NOT_FOUND) != 0) {
        size_t n = sizeof text;
        if (gnutls_x509_crt_check_issuer(crt, crt) != 0) {
            add(error, "the server's certificate is self-signed and not trusted");
        } else if (gnutls_x509_crt_get_issuer_dn(crt, text, &n) >= 0) {
            add(error, "the server's certificate is from an authority that is not trusted (%s)",
                text);
        } else {
            add(error, "the server's certificate is from an authority that is not trusted");
        }
    }
    if ((status & GNUTLS_CERT_REVOKED) != 0) {
        add(error, "the server's certificate is revoked");
    }
}

static void explain_certificate(const dsi_tls_session *s, char *error)
{
    unsigned n = 0;
    gnutls_x509_crt_t crt = NULL;
    gnutls_datum_t text = {NULL, 0};
    const unsigned status = gnutls_session_get_verify_cert_status(s->tls);
    const gnutls_datum_t *chain = gnutls_certificate_get_peers(s->tls, &n);
    error[0] = '\0';
    if (chain != NULL && n > 0 && gnutls_x509_crt_init(&crt) >= 0) {
        if (gnutls_x509_crt_import(crt, &chain[0], GNUTLS_X509_FMT_DER) >= 0) {
            put_faults(error, status, crt, s->host);
        }
        gnutls_x509_crt_deinit(crt);
    }
    if (error[0] == '\0' &&
        gnutls_certificate_verification_status_print(status, GNUTLS_CRT_X509, &text, 0) >= 0) {
        say(error, "the server's certificate: %.400s", (const char *)text.data);
        gnutls_free(text.data);
    }
}

static void explain(const dsi_tls_session *s, int code, char *error)
{
    const char *name = NULL;
    if (code == GNUTLS_E_CERTIFICATE_VERIFICATION_ERROR) {
        explain_certificate(s, error);
    } else if (s->error != 0) {
        say(error, "%s", strerror(s->error));
    } else if (!s->shook && memcmp(s->first, "HTTP/", FIRST_BYTES) == 0) {
        say(error, "the server speaks plain HTTP here: ask it by http://");
    } else if (!s->shook && s->n_first > 0 && s->first[0] != 0x15 && s->first[0] != 0x16) {
        say(error, "the server does not speak TLS here");
    } else if (code == GNUTLS_E_PREMATURE_TERMINATION && !s->shook) {
        say(error, s->n_first > 0 ? "the server closed the connection within TLS's handshake"
                                  : "the server closed the connection instead of a handshake of "
                                    "TLS: does it speak https there?");
    } else if (code == GNUTLS_E_PREMATURE_TERMINATION) {
        say(error, "the connection was closed without the end of TLS: the answer may be cut");
    } else if (code == GNUTLS_E_FATAL_ALERT_RECEIVED &&
               (name = gnutls_alert_get_name(gnutls_alert_get(s->tls))) != NULL) {
        say(error, "the server broke TLS off: %s", name);
    } else {
        say(error, "TLS: %s", gnutls_strerror(code));
    }
}

/* Whether it is to be called again, now (an interrupt, a warning) or later. */
static bool goes_on(int code)
{
    return code == GNUTLS_E_INTERRUPTED || code == GNUTLS_E_WARNING_ALERT_RECEIVED ||
           code == GNUTLS_E_REHANDSHAKE;
}

static ssize_t result_of(const dsi_tls_session *s, ssize_t n, char *error)
{
    if (n >= 0) {
        return n;
    }
    if (n == GNUTLS_E_AGAIN) {
        return DSI_TLS_WAIT;
    }
    explain(s, (int)n, error);
    return DSI_TLS_FAILED;
}

static int shake(dsi_tls_session *s, char *error)
{
    int code;
    s->began = true;
    do {
        code = gnutls_handshake(s->tls);
    } while (goes_on(code));
    s->shook = code == 0;
    return (int)result_of(s, code, error);
}

static ssize_t receive(dsi_tls_session *s, void *data, size_t n, char *error)
{
    ssize_t got = GNUTLS_E_AGAIN;
    for (int i = 0; i < MOST_ROUNDS; ++i) {
        got = gnutls_record_recv(s->tls, data, n);
        if (got >= 0 || !goes_on((int)got)) {
            return result_of(s, got, error);
        }
    }
    return DSI_TLS_WAIT; /* of warnings there may be no end */
}

static ssize_t send_some(dsi_tls_session *s, const void *data, size_t n, char *error)
{
    ssize_t sent;
    do {
        sent = gnutls_record_send(s->tls, data, n);
    } while (sent < 0 && goes_on((int)sent));
    return result_of(s, sent, error);
}

static bool waits_to_send(const dsi_tls_session *s)
{
    return !s->began || gnutls_record_get_direction(s->tls) == 1;
}

static bool pending(const dsi_tls_session *s)
{
    return gnutls_record_check_pending(s->tls) > 0;
}

/* ---- a certificate of one's own ---- */
static int fill(gnutls_x509_crt_t crt, gnutls_x509_privkey_t key, const char *host)
{
    unsigned char serial[SERIAL_BYTES];
    const time_t now = time(NULL);
    int code = gnutls_rnd(GNUTLS_RND_NONCE, serial, sizeof serial);
    serial[0] &= 0x7f; /* no negative number */
    if (code >= 0) {
        code = gnutls_x509_crt_set_version(crt, 3);
    }
    if (code >= 0) {
        code = gnutls_x509_crt_set_serial(crt, serial, sizeof serial);
    }
    if (code >= 0) {
        code = gnutls_x509_crt_set_activation_time(crt, now - DAY); /* clocks of hosts differ */
    }
    if (code >= 0) {
        code = gnutls_x509_crt_set_expiration_time(crt, now + (time_t)YEARS * 365 * DAY);
    }
    if (code >= 0) {
        code = gnutls_x509_crt_set_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, host,
                                             (unsigned)strlen(host));
    }
    if (code >= 0) {
        code = gnutls_x509_crt_set_subject_alt_name(crt, GNUTLS_SAN_DNSNAME, host,
                                                    (unsigned)strlen(host), GNUTLS_FSAN_SET);
    }
    if (code >= 0) {
        code = gnutls_x509_crt_set_key(crt, key);
    }
    return code < 0 ? code : gnutls_x509_crt_sign2(crt, crt, key, GNUTLS_DIG_SHA256, 0);
}

static int self_sign(const char *host, char *cert, char *secret, char *error)
{
    gnutls_x509_crt_t crt = NULL;
    gnutls_x509_privkey_t key = NULL;
    size_t n_cert = DSI_TLS_PEM_BYTES;
    size_t n_secret = DSI_TLS_PEM_BYTES;
    int code = gnutls_x509_crt_init(&crt);
    code = code < 0 ? code : gnutls_x509_privkey_init(&key);
    if (code >= 0) {
        const unsigned bits = GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1);
        code = gnutls_x509_privkey_generate(key, GNUTLS_PK_ECDSA, bits, 0);
    }
    code = code < 0 ? code : fill(crt, key, host);
    code = code < 0 ? code : gnutls_x509_crt_export(crt, GNUTLS_X509_FMT_PEM, cert, &n_cert);
    code =
        code < 0 ? code : gnutls_x509_privkey_export(key, GNUTLS_X509_FMT_PEM, secret, &n_secret);
    if (code < 0) {
        say(error, "%s", gnutls_strerror(code));
    }
    gnutls_x509_privkey_deinit(key);
    gnutls_x509_crt_deinit(crt);
    return code < 0 ? DSI_TLS_FAILED : 0;
}

__attribute__((visibility("default"))) extern const dsi_tls_ops dsi_tls_table;
const dsi_tls_ops dsi_tls_table = {.version = DSI_TLS_VERSION,
                                   .trust = make_trust,
                                   .distrust = distrust,
                                   .begin = begin,
                                   .handshake = shake,
                                   .recv = receive,
                                   .send = send_some,
                                   .waits_to_send = waits_to_send,
                                   .pending = pending,
                                   .end = end_session,
                                   .self_sign = self_sign};
