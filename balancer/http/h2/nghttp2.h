/* libnghttp2 as it is loaded with the Python package ngh2: types, constants and functions that
   `compiled_session.pyx` uses. They are part of the library's stable interface (nghttp2/nghttp2.h, from version 1.67
   on). */

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

enum { F_DATA = 0, F_HEADERS = 1, F_RST_STREAM = 3, F_SETTINGS = 4, F_PING = 6, F_GOAWAY = 7,
       F_WINDOW_UPDATE = 8, F_ALTSVC = 0xa, F_ORIGIN = 0xc, F_PRIORITY_UPDATE = 0x10 };
enum { FLAG_ACK = 1, FLAG_END_STREAM = 1 };
enum { CATEGORY_REQUEST = 0 };
enum { BODY_EOF = 1, BODY_NO_END_STREAM = 2 };
enum { E_DEFERRED = -508, E_STREAM_CLOSED = -510, E_STREAM_CLOSING = -511, E_STREAM_SHUT_WR = -512,
       E_TEMPORAL_FAILURE = -521, E_SESSION_CLOSING = -530, E_NOMEM = -901, E_CALLBACK = -902, E_FLOODED = -904,
       E_TOO_MANY_CONTINUATIONS = -905 };

typedef struct nghttp2_session nghttp2_session;
typedef struct nghttp2_callbacks nghttp2_callbacks;
typedef struct nghttp2_option nghttp2_option;
typedef struct nghttp2_rcbuf nghttp2_rcbuf;

typedef struct { uint8_t *base; size_t len; } nghttp2_vec;
typedef struct { uint8_t *name, *value; size_t namelen, valuelen; uint8_t flags; } nghttp2_nv;
typedef struct { int32_t settings_id; uint32_t value; } nghttp2_setting;
typedef union { int fd; void *ptr; } nghttp2_source;
typedef ptrdiff_t (*nghttp2_read)(nghttp2_session *, int32_t, uint8_t *, size_t, uint32_t *, nghttp2_source *, void *);
typedef struct { nghttp2_source source; nghttp2_read read; } nghttp2_provider;

typedef struct { size_t length; int32_t stream_id; uint8_t type, flags, reserved; } nghttp2_head;
typedef struct { int32_t stream_id, weight; uint8_t exclusive; } nghttp2_priority;
typedef struct { nghttp2_head hd; size_t padlen; nghttp2_priority priority; nghttp2_nv *nva; size_t nvlen; int category;
               } nghttp2_headers;
typedef struct { nghttp2_head hd; size_t niv; nghttp2_setting *iv; } nghttp2_settings;
typedef struct { nghttp2_head hd; uint32_t error_code; } nghttp2_rst_stream;
typedef struct { nghttp2_head hd; uint8_t opaque_data[8]; } nghttp2_ping;
typedef struct { nghttp2_head hd; int32_t last_stream_id; uint32_t error_code; uint8_t *opaque_data;
                 size_t opaque_data_len; } nghttp2_goaway;
typedef union { nghttp2_head hd; nghttp2_headers headers; nghttp2_settings settings; nghttp2_rst_stream rst_stream;
                nghttp2_ping ping; nghttp2_goaway goaway; } nghttp2_frame;

typedef int (*nghttp2_on_frame)(nghttp2_session *, const nghttp2_frame *, void *);
typedef int (*nghttp2_on_not_sent)(nghttp2_session *, const nghttp2_frame *, int, void *);
typedef int (*nghttp2_on_field)(nghttp2_session *, const nghttp2_frame *, nghttp2_rcbuf *, nghttp2_rcbuf *, uint8_t,
                                void *);
typedef int (*nghttp2_on_data)(nghttp2_session *, uint8_t, int32_t, const uint8_t *, size_t, void *);
typedef int (*nghttp2_on_close)(nghttp2_session *, int32_t, uint32_t, void *);
typedef void (*nghttp2_random)(uint8_t *, size_t);

#define LIBRARY(F) \
  F(int, session_callbacks_new, (nghttp2_callbacks **)) \
  F(void, session_callbacks_set_on_begin_headers_callback, (nghttp2_callbacks *, nghttp2_on_frame)) \
  F(void, session_callbacks_set_on_header_callback2, (nghttp2_callbacks *, nghttp2_on_field)) \
  F(void, session_callbacks_set_on_invalid_header_callback2, (nghttp2_callbacks *, nghttp2_on_field)) \
  F(void, session_callbacks_set_on_data_chunk_recv_callback, (nghttp2_callbacks *, nghttp2_on_data)) \
  F(void, session_callbacks_set_on_frame_recv_callback, (nghttp2_callbacks *, nghttp2_on_frame)) \
  F(void, session_callbacks_set_on_frame_send_callback, (nghttp2_callbacks *, nghttp2_on_frame)) \
  F(void, session_callbacks_set_on_frame_not_send_callback, (nghttp2_callbacks *, nghttp2_on_not_sent)) \
  F(void, session_callbacks_set_on_stream_close_callback, (nghttp2_callbacks *, nghttp2_on_close)) \
  F(void, session_callbacks_set_rand_callback, (nghttp2_callbacks *, nghttp2_random)) \
  F(int, option_new, (nghttp2_option **)) \
  F(void, option_del, (nghttp2_option *)) \
  F(void, option_set_no_auto_window_update, (nghttp2_option *, int)) \
  F(void, option_set_max_send_header_block_length, (nghttp2_option *, size_t)) \
  F(void, option_set_max_outbound_ack, (nghttp2_option *, size_t)) \
  F(void, option_set_max_continuations, (nghttp2_option *, size_t)) \
  F(void, option_set_stream_reset_rate_limit, (nghttp2_option *, uint64_t, uint64_t)) \
  F(void, option_set_glitch_rate_limit, (nghttp2_option *, uint64_t, uint64_t)) \
  F(void, option_set_builtin_recv_extension_type, (nghttp2_option *, uint8_t)) \
  F(int, session_client_new2, (nghttp2_session **, const nghttp2_callbacks *, void *, const nghttp2_option *)) \
  F(int, session_server_new2, (nghttp2_session **, const nghttp2_callbacks *, void *, const nghttp2_option *)) \
  F(void, session_del, (nghttp2_session *)) \
  F(ptrdiff_t, session_mem_recv2, (nghttp2_session *, const uint8_t *, size_t)) \
  F(ptrdiff_t, session_mem_send2, (nghttp2_session *, const uint8_t **)) \
  F(int, session_want_read, (nghttp2_session *)) \
  F(int, session_want_write, (nghttp2_session *)) \
  F(int, session_check_request_allowed, (nghttp2_session *)) \
  F(int, session_resume_data, (nghttp2_session *, int32_t)) \
  F(int, session_consume, (nghttp2_session *, int32_t, size_t)) \
  F(int, session_terminate_session, (nghttp2_session *, uint32_t)) \
  F(int, session_set_local_window_size, (nghttp2_session *, uint8_t, int32_t, int32_t)) \
  F(int32_t, session_get_remote_window_size, (nghttp2_session *)) \
  F(int32_t, session_get_stream_remote_window_size, (nghttp2_session *, int32_t)) \
  F(int32_t, session_get_last_proc_stream_id, (nghttp2_session *)) \
  F(int, session_get_stream_local_close, (nghttp2_session *, int32_t)) \
  F(int, session_get_stream_remote_close, (nghttp2_session *, int32_t)) \
  F(int, submit_settings, (nghttp2_session *, uint8_t, const nghttp2_setting *, size_t)) \
  F(int32_t, submit_request2, (nghttp2_session *, const void *, const nghttp2_nv *, size_t, const nghttp2_provider *, \
                               void *)) \
  F(int, submit_response2, (nghttp2_session *, int32_t, const nghttp2_nv *, size_t, const nghttp2_provider *)) \
  F(int32_t, submit_headers, (nghttp2_session *, uint8_t, int32_t, const void *, const nghttp2_nv *, size_t, void *)) \
  F(int, submit_trailer, (nghttp2_session *, int32_t, const nghttp2_nv *, size_t)) \
  F(int, submit_rst_stream, (nghttp2_session *, uint8_t, int32_t, uint32_t)) \
  F(int, submit_ping, (nghttp2_session *, uint8_t, const uint8_t *)) \
  F(int, submit_goaway, (nghttp2_session *, uint8_t, int32_t, uint32_t, const uint8_t *, size_t)) \
  F(int, submit_shutdown_notice, (nghttp2_session *)) \
  F(nghttp2_vec, rcbuf_get_buf, (nghttp2_rcbuf *)) \
  F(void, rcbuf_incref, (nghttp2_rcbuf *)) \
  F(void, rcbuf_decref, (nghttp2_rcbuf *)) \
  F(int, is_fatal, (int)) \
  F(const char *, strerror, (int))

#define DECLARE(type, name, arguments) static type (*nghttp2_##name) arguments;
LIBRARY(DECLARE)

#define LOAD(type, name, arguments) \
  if (!(nghttp2_##name = (type (*) arguments) dlsym(library, "nghttp2_" #name))) return "nghttp2_" #name;

/* Find all functions in the shared object at `path`. Returns the name of what is missing, else NULL. */
static const char *load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    if (!library) return path;
    LIBRARY(LOAD)
    return NULL;
}
