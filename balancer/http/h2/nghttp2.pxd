"""Declarations of `nghttp2.h` for Cython: what `compiled_session.pyx` uses of each type, and all functions."""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t


cdef extern from "nghttp2.h":
    ctypedef struct nghttp2_session
    ctypedef struct nghttp2_callbacks
    ctypedef struct nghttp2_option
    ctypedef struct nghttp2_rcbuf
    ctypedef struct nghttp2_vec:
        uint8_t *base
        size_t len
    ctypedef struct nghttp2_nv:
        uint8_t *name
        uint8_t *value
        size_t namelen
        size_t valuelen
        uint8_t flags
    ctypedef struct nghttp2_setting:
        int32_t settings_id
        uint32_t value
    ctypedef union nghttp2_source:
        void *ptr
    ctypedef ptrdiff_t (*nghttp2_read)(
        nghttp2_session *, int32_t, uint8_t *, size_t, uint32_t *, nghttp2_source *, void *
    ) noexcept
    ctypedef struct nghttp2_provider:
        nghttp2_source source
        nghttp2_read read
    ctypedef struct nghttp2_head:
        int32_t stream_id
        uint8_t type
        uint8_t flags
    ctypedef struct nghttp2_headers:
        int category
    ctypedef struct nghttp2_settings:
        size_t niv
        nghttp2_setting *iv
    ctypedef struct nghttp2_rst_stream:
        uint32_t error_code
    ctypedef struct nghttp2_ping:
        uint8_t opaque_data[8]
    ctypedef struct nghttp2_goaway:
        int32_t last_stream_id
        uint32_t error_code
        uint8_t *opaque_data
        size_t opaque_data_len
    ctypedef union nghttp2_frame:
        nghttp2_head hd
        nghttp2_headers headers
        nghttp2_settings settings
        nghttp2_rst_stream rst_stream
        nghttp2_ping ping
        nghttp2_goaway goaway
    ctypedef int (*nghttp2_on_frame)(nghttp2_session *, const nghttp2_frame *, void *) noexcept
    ctypedef int (*nghttp2_on_not_sent)(nghttp2_session *, const nghttp2_frame *, int, void *) noexcept
    ctypedef int (*nghttp2_on_field)(
        nghttp2_session *, const nghttp2_frame *, nghttp2_rcbuf *, nghttp2_rcbuf *, uint8_t, void *
    ) noexcept
    ctypedef int (*nghttp2_on_data)(
        nghttp2_session *, uint8_t, int32_t, const uint8_t *, size_t, void *
    ) noexcept
    ctypedef int (*nghttp2_on_close)(nghttp2_session *, int32_t, uint32_t, void *) noexcept
    ctypedef void (*nghttp2_random)(uint8_t *, size_t) noexcept

    enum:
        F_DATA, F_HEADERS, F_RST_STREAM, F_SETTINGS, F_PING, F_GOAWAY, F_WINDOW_UPDATE
        F_ALTSVC, F_ORIGIN, F_PRIORITY_UPDATE
        FLAG_ACK, FLAG_END_STREAM
        CATEGORY_REQUEST
        BODY_EOF, BODY_NO_END_STREAM
        E_DEFERRED, E_STREAM_CLOSED, E_STREAM_CLOSING, E_STREAM_SHUT_WR, E_TEMPORAL_FAILURE, E_SESSION_CLOSING
        E_NOMEM, E_CALLBACK, E_FLOODED, E_TOO_MANY_CONTINUATIONS

    const char *load(const char *)

    int nghttp2_session_callbacks_new(nghttp2_callbacks **)
    void nghttp2_session_callbacks_set_on_begin_headers_callback(nghttp2_callbacks *, nghttp2_on_frame)
    void nghttp2_session_callbacks_set_on_header_callback2(nghttp2_callbacks *, nghttp2_on_field)
    void nghttp2_session_callbacks_set_on_invalid_header_callback2(nghttp2_callbacks *, nghttp2_on_field)
    void nghttp2_session_callbacks_set_on_data_chunk_recv_callback(nghttp2_callbacks *, nghttp2_on_data)
    void nghttp2_session_callbacks_set_on_frame_recv_callback(nghttp2_callbacks *, nghttp2_on_frame)
    void nghttp2_session_callbacks_set_on_frame_send_callback(nghttp2_callbacks *, nghttp2_on_frame)
    void nghttp2_session_callbacks_set_on_frame_not_send_callback(nghttp2_callbacks *, nghttp2_on_not_sent)
    void nghttp2_session_callbacks_set_on_stream_close_callback(nghttp2_callbacks *, nghttp2_on_close)
    void nghttp2_session_callbacks_set_rand_callback(nghttp2_callbacks *, nghttp2_random)
    int nghttp2_option_new(nghttp2_option **)
    void nghttp2_option_del(nghttp2_option *)
    void nghttp2_option_set_no_auto_window_update(nghttp2_option *, int)
    void nghttp2_option_set_max_send_header_block_length(nghttp2_option *, size_t)
    void nghttp2_option_set_max_outbound_ack(nghttp2_option *, size_t)
    void nghttp2_option_set_max_continuations(nghttp2_option *, size_t)
    void nghttp2_option_set_stream_reset_rate_limit(nghttp2_option *, uint64_t, uint64_t)
    void nghttp2_option_set_glitch_rate_limit(nghttp2_option *, uint64_t, uint64_t)
    void nghttp2_option_set_builtin_recv_extension_type(nghttp2_option *, uint8_t)
    int nghttp2_session_client_new2(
        nghttp2_session **, const nghttp2_callbacks *, void *, const nghttp2_option *
    )
    int nghttp2_session_server_new2(
        nghttp2_session **, const nghttp2_callbacks *, void *, const nghttp2_option *
    )
    void nghttp2_session_del(nghttp2_session *)
    ptrdiff_t nghttp2_session_mem_recv2(nghttp2_session *, const uint8_t *, size_t)
    ptrdiff_t nghttp2_session_mem_send2(nghttp2_session *, const uint8_t **)
    int nghttp2_session_want_read(nghttp2_session *)
    int nghttp2_session_want_write(nghttp2_session *)
    int nghttp2_session_check_request_allowed(nghttp2_session *)
    int nghttp2_session_resume_data(nghttp2_session *, int32_t)
    int nghttp2_session_consume(nghttp2_session *, int32_t, size_t)
    int nghttp2_session_terminate_session(nghttp2_session *, uint32_t)
    int nghttp2_session_set_local_window_size(nghttp2_session *, uint8_t, int32_t, int32_t)
    int32_t nghttp2_session_get_remote_window_size(nghttp2_session *)
    int32_t nghttp2_session_get_stream_remote_window_size(nghttp2_session *, int32_t)
    int32_t nghttp2_session_get_last_proc_stream_id(nghttp2_session *)
    int nghttp2_session_get_stream_local_close(nghttp2_session *, int32_t)
    int nghttp2_session_get_stream_remote_close(nghttp2_session *, int32_t)
    int nghttp2_submit_settings(nghttp2_session *, uint8_t, const nghttp2_setting *, size_t)
    int32_t nghttp2_submit_request2(
        nghttp2_session *, const void *, const nghttp2_nv *, size_t, const nghttp2_provider *, void *
    )
    int nghttp2_submit_response2(
        nghttp2_session *, int32_t, const nghttp2_nv *, size_t, const nghttp2_provider *
    )
    int32_t nghttp2_submit_headers(
        nghttp2_session *, uint8_t, int32_t, const void *, const nghttp2_nv *, size_t, void *
    )
    int nghttp2_submit_trailer(nghttp2_session *, int32_t, const nghttp2_nv *, size_t)
    int nghttp2_submit_rst_stream(nghttp2_session *, uint8_t, int32_t, uint32_t)
    int nghttp2_submit_ping(nghttp2_session *, uint8_t, const uint8_t *)
    int nghttp2_submit_goaway(nghttp2_session *, uint8_t, int32_t, uint32_t, const uint8_t *, size_t)
    int nghttp2_submit_shutdown_notice(nghttp2_session *)
    nghttp2_vec nghttp2_rcbuf_get_buf(nghttp2_rcbuf *)
    void nghttp2_rcbuf_incref(nghttp2_rcbuf *)
    void nghttp2_rcbuf_decref(nghttp2_rcbuf *)
    int nghttp2_is_fatal(int)
    const char *nghttp2_strerror(int)
