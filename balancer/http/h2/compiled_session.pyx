# cython: language_level=3
"""HTTP/2 session on libnghttp2, compiled: the same as `pure_session.py` in half the time.

It calls the functions of the library that the package ngh2 carries, without an object per event and without copies of
fields that a peer repeats: a field that the peer's compression refers to again is the same pair, and a head that is
equal to the last one is the same tuple.

No exception may pass through the library: a callback keeps it, and the call that it was made in raises it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from os import urandom

cimport cython

import ngh2
import ngh2._core

from balancer.http.h2.events import (
    CLOSED,
    DATA,
    GOAWAY,
    HEAD,
    INTERIM,
    OUTPUT,
    OVERSIZED,
    PONG,
    RESET,
    SETTINGS,
    STREAM_CLOSED,
    TRAILERS,
)
from balancer.http.h2.limits import ACK_LIMIT, HARD_LIMIT_RATIO, LARGEST_HEAD
from balancer.http.h2.nghttp2 cimport *


cdef tuple ADVANCES_NOTHING = (0, 0, None, False)
cdef object KIND_HEAD = HEAD
cdef object KIND_DATA = DATA

cdef enum:
    OVERHEAD = 32  # bytes that each field counts beside its name and value
    KEPT = 32  # fields of the last head that are remembered
    LONGEST_KEPT = 512  # bytes of the value of such a field
    LARGEST_OUTPUT = 1 << 20  # bytes of `output` that stay allocated

cdef uint8_t *output = NULL  # where the frames of one call of `send` are put together
cdef size_t output_size = 0
cdef nghttp2_nv *outgoing = NULL  # fields of the head that is being submitted; the library copies them
cdef size_t most_outgoing = 0
cdef nghttp2_callbacks *callbacks = NULL
cdef nghttp2_provider provider_of_bodies


@cython.final
@cython.freelist(64)
cdef class Body:
    """A part of a body that is left to send from `at` on, and what follows it."""

    cdef bytes data
    cdef size_t at
    cdef bint is_last
    cdef bint is_deferred  # nothing was left when the library asked for more
    cdef object trailers


@cython.final
cdef class Session:
    """As `pure_session.Session`."""

    cdef nghttp2_session *_session
    cdef bint _is_ending
    cdef bint _is_closing
    cdef bint _is_over
    cdef uint32_t _code
    cdef bytes _reason
    cdef object _error
    cdef list _events
    cdef dict _bodies
    cdef set _unsendable
    cdef size_t _queued
    cdef size_t _advertised, _largest  # size of a header list that is allowed, and that ends the connection
    # the head that is being received
    cdef list _fields  # None while all its fields are those of the last one
    cdef Py_ssize_t _count
    cdef size_t _list_size
    # the last head, and the first of its fields
    cdef tuple _last
    cdef nghttp2_rcbuf *_names[KEPT]
    cdef nghttp2_rcbuf *_values[KEPT]
    cdef size_t _sizes[KEPT]
    cdef list _pairs
    # the frame DATA that is being received
    cdef int32_t _part_id
    cdef bytes _part

    def __cinit__(self, bint is_server, limits, settings, int32_t window):
        cdef nghttp2_option *option = NULL
        cdef nghttp2_setting entries[16]
        cdef int result = 0, count = 0
        self._events = []
        self._bodies = {}
        self._pairs = []
        self._reason = b""
        self._advertised = limits.header_list
        self._largest = HARD_LIMIT_RATIO * limits.header_list
        if nghttp2_option_new(&option):
            raise MemoryError()
        nghttp2_option_set_no_auto_window_update(option, 1)
        nghttp2_option_set_max_send_header_block_length(option, LARGEST_HEAD)
        nghttp2_option_set_max_outbound_ack(option, ACK_LIMIT)
        nghttp2_option_set_max_continuations(option, limits.continuations)
        nghttp2_option_set_stream_reset_rate_limit(option, <uint64_t>1 << 40, <uint64_t>1 << 40)
        nghttp2_option_set_glitch_rate_limit(option, limits.idle_frames, limits.idle_frames)
        for kind in (F_ALTSVC, F_ORIGIN, F_PRIORITY_UPDATE):
            nghttp2_option_set_builtin_recv_extension_type(option, kind)
        if is_server:
            result = nghttp2_session_server_new2(&self._session, callbacks, <void *>self, option)
        else:
            result = nghttp2_session_client_new2(&self._session, callbacks, <void *>self, option)
        nghttp2_option_del(option)
        if result:
            raise MemoryError()
        for key, value in settings.items():
            entries[count].settings_id, entries[count].value = key, value
            count += 1
        self._check(nghttp2_submit_settings(self._session, 0, entries, count))
        self._check(nghttp2_session_set_local_window_size(self._session, 0, 0, window))

    def __dealloc__(self):
        cdef int i
        for i in range(KEPT):
            if self._names[i] != NULL:
                nghttp2_rcbuf_decref(self._names[i])
                nghttp2_rcbuf_decref(self._values[i])
        if self._session != NULL:
            nghttp2_session_del(self._session)

    # --- from the peer

    def receive(self, data, bint sends):
        if len(data):
            self._parse(data)
        if sends and self._session != NULL and nghttp2_session_want_write(self._session):
            made = self.send()
            if made:
                self._events.insert(0, (OUTPUT, 0, made, False))
        return self.events()

    cdef int _parse(self, data) except -1:
        cdef const uint8_t[:] view
        cdef const uint8_t *start
        cdef size_t size = len(data)
        cdef ptrdiff_t result
        self._require()
        if type(data) is bytes:
            start = <const uint8_t *>PyBytes_AS_STRING(data)
        else:
            view = data
            start = &view[0]
        result = nghttp2_session_mem_recv2(self._session, start, size)
        self._raise_for(result)
        if <size_t>result != size:
            self._fail()
            raise ngh2.InternalError("HTTP/2 engine error: bytes were left over")
        if self._is_closing:
            self._end_if_silent()
        return 0

    cpdef list events(self):
        events = self._events
        if events:
            self._events = []
        return events

    @property
    def wants_read(self):
        return self._session != NULL and nghttp2_session_want_read(self._session) != 0

    # --- to the peer

    cpdef bytes send(self, limit=None):
        cdef size_t most = <size_t>-1 if limit is None else limit
        cdef size_t size = 0
        cdef const uint8_t *data
        cdef ptrdiff_t length
        if self._session == NULL:
            raise ngh2.ConnectionStateError("HTTP/2 engine error: the session has failed")
        while size < most:
            length = nghttp2_session_mem_send2(self._session, &data)
            if length <= 0:
                self._raise_for(length)
                break
            make_room(size + length)
            memcpy(output + size, data, length)
            size += length
        if self._is_closing:
            self._end_if_silent()
        return taken(size)

    def request(self, fields, bint is_last):
        cdef Body body = None
        cdef int32_t stream_id
        self._require()
        if not nghttp2_session_check_request_allowed(self._session):
            raise ngh2.ConnectionClosingError("HTTP/2 engine error: the session takes no more requests")
        if not is_last:
            body = Body.__new__(Body)
            body.data = b""
        stream_id = nghttp2_submit_request2(
            self._session, NULL, vector(fields), len(fields), NULL if is_last else &provider_of_bodies, NULL
        )
        self._check(stream_id)
        self._bodies[stream_id] = body
        return stream_id

    def interim(self, int32_t stream_id, fields):
        cdef int result
        self._require_unanswered(stream_id)
        result = nghttp2_submit_headers(self._session, 0, stream_id, NULL, vector(fields), len(fields), NULL)
        self._check(result)

    def respond(self, stream_id, fields, bytes data not None, bint is_last):
        cdef int32_t number = stream_id
        cdef nghttp2_nv *head = vector(fields)
        cdef Body body = Body.__new__(Body)
        cdef int result
        body.data = data
        body.is_last = is_last
        self._require_stream(number)
        if self._bodies.setdefault(stream_id, body) is not body:
            raise ngh2.StreamProtocolError("HTTP/2 engine error: the stream has a response")
        result = nghttp2_submit_response2(
            self._session, number, head, len(fields), NULL if is_last and not data else &provider_of_bodies
        )
        if result < 0:
            del self._bodies[stream_id]
        self._check(result)
        self._queued += len(data)

    def send_data(self, int32_t stream_id, bytes data not None, bint is_last):
        cdef Body body = self._open_body(stream_id)
        if data:
            body.data = data if body.at == <size_t>PyBytes_GET_SIZE(body.data) else body.data[body.at:] + data
            body.at = 0
            self._queued += len(data)
        body.is_last = is_last
        if body.is_deferred and (data or is_last):
            self._resume(stream_id, body)

    def send_trailers(self, int32_t stream_id, fields):
        cdef Body body = self._open_body(stream_id)
        body.trailers = fields
        body.is_last = True
        if body.is_deferred:
            self._resume(stream_id, body)

    def queued(self, int32_t stream_id):
        cdef Body body = self._bodies.get(stream_id)
        return 0 if body is None else PyBytes_GET_SIZE(body.data) - body.at

    @property
    def queued_in_all(self):
        return self._queued

    @property
    def window(self):
        self._require()
        return nghttp2_session_get_remote_window_size(self._session)

    def stream_window(self, int32_t stream_id):
        self._require_stream(stream_id)
        return nghttp2_session_get_stream_remote_window_size(self._session, stream_id)

    def acknowledge(self, int32_t stream_id, size_t size):
        self._require()
        self._check(nghttp2_session_consume(self._session, stream_id, size))

    def reset(self, int32_t stream_id, uint32_t code):
        self._require()
        self._check(nghttp2_submit_rst_stream(self._session, 0, stream_id, code))

    def ping(self, bytes data not None):
        self._require()
        if len(data) != 8:
            raise ValueError("a PING has eight bytes")
        self._check(nghttp2_submit_ping(self._session, 0, <uint8_t *>PyBytes_AS_STRING(data)))

    def announce_goaway(self):
        self._require()
        self._check(nghttp2_submit_shutdown_notice(self._session))

    def goaway(self):
        cdef int32_t last_id
        self._require()
        last_id = nghttp2_session_get_last_proc_stream_id(self._session)
        self._check(nghttp2_submit_goaway(self._session, 0, last_id, 0, NULL, 0))

    def terminate(self, uint32_t code):
        self._require()
        self._check(nghttp2_session_terminate_session(self._session, code))
        self._is_ending = self._is_closing = True
        self._forget_all()

    # --- state

    cdef int _require(self) except -1:
        """Raise an error unless the session takes calls."""
        if self._session == NULL or self._is_ending:
            raise ngh2.ConnectionStateError("HTTP/2 engine error: the session has ended")
        return 0

    cdef int _require_stream(self, int32_t stream_id) except -1:
        self._require()
        if nghttp2_session_get_stream_local_close(self._session, stream_id) < 0:
            raise ngh2.StreamUnavailableError("HTTP/2 engine error: no such stream")
        return 0

    cdef int _require_unanswered(self, int32_t stream_id) except -1:
        self._require_stream(stream_id)
        if stream_id in self._bodies:
            raise ngh2.StreamProtocolError("HTTP/2 engine error: the stream has a response")
        return 0

    cdef Body _open_body(self, int32_t stream_id):
        """Return the body of a message whose last part has not been sent."""
        cdef Body body
        self._require()
        body = self._bodies.get(stream_id)
        if body is None or body.is_last:
            raise ngh2.StreamProtocolError("HTTP/2 engine error: the stream has no open body")
        return body

    cdef int _resume(self, int32_t stream_id, Body body) except -1:
        self._check(nghttp2_session_resume_data(self._session, stream_id))
        body.is_deferred = False
        return 0

    cdef int _check(self, int result) except -1:
        """Raise the error that the result of a call means, if any."""
        if result >= 0:
            return 0
        if nghttp2_is_fatal(result):
            self._fail()
        if result == E_NOMEM:
            raise MemoryError()
        kind = ngh2.NGH2Error
        if result == E_FLOODED or result == E_TOO_MANY_CONTINUATIONS:
            kind = ngh2.DenialOfServiceError
        raise kind("HTTP/2 engine error: " + nghttp2_strerror(result).decode("ascii"))

    cdef int _raise_for(self, ptrdiff_t result) except -1:
        """Raise the error of a callback, or the one that the result means."""
        if result >= 0:
            return 0
        if self._error is not None:
            error, self._error = self._error, None
            self._fail()
            raise error
        return self._check(<int>result)

    cdef void _fail(self) noexcept:
        """Delete what a fatal error has destroyed."""
        if self._session != NULL:
            nghttp2_session_del(self._session)
            self._session = NULL
        self._forget_all()

    cdef void _forget_all(self) noexcept:
        self._bodies.clear()
        self._queued = 0
        self._part = None

    cdef int _end_if_silent(self) except -1:
        """Report the end once neither side has anything left to send."""
        if self._is_over or nghttp2_session_want_read(self._session) or nghttp2_session_want_write(self._session):
            return 0
        self._is_over = self._is_ending = True
        self._forget_all()
        self._events.append((CLOSED, 0, (self._code, self._reason), False))
        return 0

    # --- events

    cdef int _field(self, nghttp2_rcbuf *name, nghttp2_rcbuf *value) except -1:
        """Add a field to the head that is being received."""
        cdef nghttp2_vec name_bytes, value_bytes
        cdef Py_ssize_t at = self._count
        cdef tuple pair
        self._count += 1
        if at < KEPT and self._names[at] == name and self._values[at] == value:
            self._list_size += self._sizes[at]
            if self._fields is not None:
                self._fields.append(self._pairs[at])
            return self._check_size()
        if self._fields is None:
            self._fields = self._pairs[:at]
            self._last = None  # the kept fields are no longer its own; this head may never be complete
        name_bytes, value_bytes = nghttp2_rcbuf_get_buf(name), nghttp2_rcbuf_get_buf(value)
        self._list_size += name_bytes.len + value_bytes.len + OVERHEAD
        self._check_size()
        pair = (
            PyBytes_FromStringAndSize(<char *>name_bytes.base, name_bytes.len),
            PyBytes_FromStringAndSize(<char *>value_bytes.base, value_bytes.len),
        )
        self._fields.append(pair)
        if at >= KEPT:
            return 0
        if at == len(self._pairs):
            self._pairs.append(None)
        self._pairs[at] = None
        if self._names[at] != NULL:
            nghttp2_rcbuf_decref(self._names[at])
            nghttp2_rcbuf_decref(self._values[at])
            self._names[at] = self._values[at] = NULL
        if name_bytes.len + value_bytes.len <= LONGEST_KEPT:
            nghttp2_rcbuf_incref(name)
            nghttp2_rcbuf_incref(value)
            self._names[at], self._values[at], self._pairs[at] = name, value, pair
            self._sizes[at] = name_bytes.len + value_bytes.len + OVERHEAD
        return 0

    cdef int _check_size(self) except -1:
        """Raise an error if the header list is so large that the connection has to end."""
        if self._list_size > self._largest:
            raise ngh2.DenialOfServiceError("HTTP/2 engine error: the header list is far larger than advertised")
        return 0

    cdef int _head(self, const nghttp2_frame *frame) except -1:
        """Report the head, or the trailers, that have come."""
        cdef object kind = KIND_HEAD
        cdef tuple fields, first
        if self._fields is None and self._last is not None and len(self._last) == self._count:
            fields = self._last
        else:
            fields = tuple(self._pairs[: self._count] if self._fields is None else self._fields)
            self._last = fields if len(fields) <= KEPT else None
        self._fields = None
        if frame.headers.category != CATEGORY_REQUEST:
            first = <tuple>fields[0] if fields else (b"", b"")
            if first[0] != b":status":
                kind = TRAILERS
            elif (<bytes>first[1]).startswith(b"1"):
                kind = INTERIM
        if kind is KIND_HEAD and self._list_size > self._advertised:
            kind = OVERSIZED
        self._events.append((kind, frame.hd.stream_id, fields, (frame.hd.flags & FLAG_END_STREAM) != 0))
        return 0

    cdef int _data(self, const nghttp2_frame *frame) except -1:
        """Report a whole frame DATA."""
        cdef bytes data = b""
        if self._part is not None and self._part_id == frame.hd.stream_id:
            data = self._part
        self._part = None
        self._events.append((KIND_DATA, frame.hd.stream_id, data, (frame.hd.flags & FLAG_END_STREAM) != 0))
        return 0

    cdef int _frame(self, const nghttp2_frame *frame) except -1:
        cdef uint8_t kind = frame.hd.type
        cdef size_t i
        if kind == F_HEADERS:
            self._head(frame)
        elif kind == F_DATA:
            self._data(frame)
        elif kind == F_RST_STREAM:
            self._events.append((RESET, frame.hd.stream_id, frame.rst_stream.error_code, True))
        elif kind == F_SETTINGS and not frame.hd.flags & FLAG_ACK:
            settings = {}
            for i in range(frame.settings.niv):
                settings[frame.settings.iv[i].settings_id] = frame.settings.iv[i].value
            self._events.append((SETTINGS, 0, settings, False))
        elif kind == F_PING and frame.hd.flags & FLAG_ACK:
            self._events.append((PONG, 0, PyBytes_FromStringAndSize(<char *>frame.ping.opaque_data, 8), False))
        elif kind == F_GOAWAY:
            self._note_goaway(frame)
            self._events.append((GOAWAY, frame.goaway.last_stream_id, frame.goaway.error_code, False))
        elif kind == F_SETTINGS or kind == F_PING or kind == F_WINDOW_UPDATE or kind >= F_ALTSVC:
            self._events.append(ADVANCES_NOTHING)
        return 0

    cdef int _note_goaway(self, const nghttp2_frame *frame) except -1:
        self._is_closing = True
        self._code = frame.goaway.error_code
        self._reason = PyBytes_FromStringAndSize(
            <char *>frame.goaway.opaque_data, frame.goaway.opaque_data_len
        )
        return 0

    cdef int _closed(self, int32_t stream_id, uint32_t code) except -1:
        """Report that a stream has ended, unless by the ends of both messages, which were reported."""
        cdef Body body = self._bodies.pop(stream_id, None)
        cdef bint has_failed = False
        if body is not None:
            self._queued -= PyBytes_GET_SIZE(body.data) - body.at
        if self._part_id == stream_id:
            self._part = None
        if self._unsendable is not None:
            has_failed = stream_id in self._unsendable
            self._unsendable.discard(stream_id)
        if (
            code == 0
            and not has_failed
            and nghttp2_session_get_stream_local_close(self._session, stream_id) == 1
            and nghttp2_session_get_stream_remote_close(self._session, stream_id) == 1
        ):
            return 0
        self._events.append((STREAM_CLOSED, stream_id, code, has_failed))
        return 0

    cdef int _not_sent(self, const nghttp2_frame *frame, int error) except -1:
        """Reset a stream whose head the library cannot send."""
        if frame.hd.type != F_HEADERS or error in (
            E_STREAM_CLOSED, E_STREAM_CLOSING, E_STREAM_SHUT_WR, E_SESSION_CLOSING
        ):
            return 0
        if self._unsendable is None:
            self._unsendable = set()
        self._unsendable.add(frame.hd.stream_id)
        if frame.headers.category != CATEGORY_REQUEST:
            nghttp2_submit_rst_stream(self._session, 0, frame.hd.stream_id, 2)
        return 0


cdef int make_room(size_t size) except -1:
    """Enlarge `output` to at least `size` bytes."""
    global output, output_size
    cdef uint8_t *larger
    if size <= output_size:
        return 0
    size = max(size, 2 * output_size, 65536)
    larger = <uint8_t *>realloc(output, size)
    if larger == NULL:
        raise MemoryError()
    output, output_size = larger, size
    return 0


cdef bytes taken(size_t size):
    """Return the first bytes of `output`, and free it if it has become large."""
    global output, output_size
    if not size:
        return b""
    made = PyBytes_FromStringAndSize(<char *>output, size)
    if output_size > LARGEST_OUTPUT:
        free(output)
        output, output_size = NULL, 0
    return made


cdef nghttp2_nv *vector(list fields) except NULL:
    """Return the fields for one call of the library."""
    global outgoing, most_outgoing
    cdef size_t i = 0, count = len(fields)
    cdef nghttp2_nv *larger
    cdef tuple pair
    cdef bytes name, value
    if count > most_outgoing:
        larger = <nghttp2_nv *>realloc(outgoing, max(count, 64) * sizeof(nghttp2_nv))
        if larger == NULL:
            raise MemoryError()
        outgoing, most_outgoing = larger, max(count, 64)
    for pair in fields:
        name, value = pair
        outgoing[i].name, outgoing[i].namelen = <uint8_t *>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)
        outgoing[i].value, outgoing[i].valuelen = <uint8_t *>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        outgoing[i].flags = 0
        i += 1
    return outgoing


# --- callbacks of the library

cdef int failed(void *session, object error) noexcept:
    (<Session>session)._error = error
    return E_CALLBACK


cdef int on_begin(nghttp2_session *_, const nghttp2_frame *frame, void *session) noexcept:
    (<Session>session)._fields = None
    (<Session>session)._count = 0
    (<Session>session)._list_size = 0
    return 0


cdef int on_field(
    nghttp2_session *_,
    const nghttp2_frame *frame,
    nghttp2_rcbuf *name,
    nghttp2_rcbuf *value,
    uint8_t flags,
    void *session,
) noexcept:
    try:
        return (<Session>session)._field(name, value)
    except BaseException as error:
        return failed(session, error)


cdef int on_invalid_field(
    nghttp2_session *_,
    const nghttp2_frame *frame,
    nghttp2_rcbuf *name,
    nghttp2_rcbuf *value,
    uint8_t flags,
    void *session,
) noexcept:
    """Reset the stream of a message with an invalid field, which the library would leave out."""
    return E_TEMPORAL_FAILURE


cdef int on_data(
    nghttp2_session *_, uint8_t flags, int32_t stream_id, const uint8_t *data, size_t size, void *session
) noexcept:
    cdef Session own = <Session>session
    cdef bytes part
    try:
        part = PyBytes_FromStringAndSize(<const char *>data, size)
        own._part = part if own._part is None or own._part_id != stream_id else own._part + part
        own._part_id = stream_id
        return 0
    except BaseException as error:
        return failed(session, error)


cdef int on_frame(nghttp2_session *_, const nghttp2_frame *frame, void *session) noexcept:
    try:
        return (<Session>session)._frame(frame)
    except BaseException as error:
        return failed(session, error)


cdef int on_sent(nghttp2_session *_, const nghttp2_frame *frame, void *session) noexcept:
    if frame.hd.type != F_GOAWAY:
        return 0
    try:
        return (<Session>session)._note_goaway(frame)
    except BaseException as error:
        return failed(session, error)


cdef int on_not_sent(nghttp2_session *_, const nghttp2_frame *frame, int code, void *session) noexcept:
    try:
        return (<Session>session)._not_sent(frame, code)
    except BaseException as error:
        return failed(session, error)


cdef int on_close(nghttp2_session *_, int32_t stream_id, uint32_t code, void *session) noexcept:
    try:
        return (<Session>session)._closed(stream_id, code)
    except BaseException as error:
        return failed(session, error)


cdef ptrdiff_t read_body(
    nghttp2_session *session,
    int32_t stream_id,
    uint8_t *buffer,
    size_t room,
    uint32_t *flags,
    nghttp2_source *source,
    void *own,
) noexcept:
    """Give the library what is left of a body, as much as a frame takes."""
    cdef Body body = (<Session>own)._bodies.get(stream_id)
    cdef size_t left, size
    if body is None:  # the session has been terminated
        return E_TEMPORAL_FAILURE
    left = PyBytes_GET_SIZE(body.data) - body.at
    size = min(room, left)
    if size:
        memcpy(buffer, PyBytes_AS_STRING(body.data) + body.at, size)
        body.at += size
        (<Session>own)._queued -= size
    if size < left:
        return size
    body.data = b""
    body.at = 0
    if not body.is_last:
        if size:
            return size
        body.is_deferred = True
        return E_DEFERRED
    flags[0] |= BODY_EOF
    if body.trailers is not None:
        flags[0] |= BODY_NO_END_STREAM
        try:
            submit_trailers(session, stream_id, body)
        except BaseException as error:
            return failed(own, error)
    return size


cdef int submit_trailers(nghttp2_session *session, int32_t stream_id, Body body) except -1:
    cdef int result = nghttp2_submit_trailer(session, stream_id, vector(body.trailers), len(body.trailers))
    if result < 0:
        raise ngh2.NGH2Error("HTTP/2 engine error: " + nghttp2_strerror(result).decode("ascii"))
    return 0


cdef void fill_random(uint8_t *place, size_t size) noexcept:
    """Seed the hash of the library's map of streams."""
    cdef bytes made = urandom(size)
    memcpy(place, PyBytes_AS_STRING(made), size)


cdef int prepare() except -1:
    global callbacks
    cdef const char *missing = load(ngh2._core.__file__.encode())
    if missing != NULL:
        raise ImportError("the package ngh2 has no " + missing.decode())
    if nghttp2_session_callbacks_new(&callbacks):
        raise MemoryError()
    provider_of_bodies.read = read_body
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin)
    nghttp2_session_callbacks_set_on_header_callback2(callbacks, on_field)
    nghttp2_session_callbacks_set_on_invalid_header_callback2(callbacks, on_invalid_field)
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data)
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame)
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_sent)
    nghttp2_session_callbacks_set_on_frame_not_send_callback(callbacks, on_not_sent)
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close)
    nghttp2_session_callbacks_set_rand_callback(callbacks, fill_random)
    return 0


prepare()
