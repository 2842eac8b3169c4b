package nbd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"samovar/internal/block"
)

// Reasons for the end of a session that are nobody's fault.
var (
	errStopping = errors.New("the server shuts down")
	errLeft     = errors.New("the client closed the connection without a disconnect")
	errSilent   = errors.New("the client did not choose an export in time")
	errAbort    = errors.New("the client aborted the negotiation")
)

// garbage is the reason when the client broke the protocol.
type garbage struct{ what string }

func (g garbage) Error() string { return "protocol violation: " + g.what }

// session is one connection. Its goroutine negotiates, receives and drains; the replier is its second one.
type session struct {
	id       uint64
	options  Options
	listener net.Listener
	conn     net.Conn
	log      *slog.Logger
	since    time.Time
	done     chan struct{}

	ctx    context.Context // ends when the session is told to stop
	cancel context.CancelFunc

	mu       sync.Mutex // guards the following, and orders deadlines against stop
	export   string
	state    string
	stopping bool

	// Owned by the session's goroutine.
	in       *intake
	device   block.Device
	size     uint64 // as announced
	readOnly bool
	batch    []*block.Request

	slots    *slots
	replies  *replies
	draining atomic.Bool // no more requests are read: replies have a deadline
}

func newSession(ctx context.Context, options Options, id uint64, listener net.Listener, conn net.Conn) *session {
	s := &session{
		id: id, options: options, listener: listener, conn: conn, since: time.Now(),
		done: make(chan struct{}), in: newIntake(conn), state: "negotiating",
		log: options.Logger.With("session", id, "client", clientName(conn)),
	}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.replies = newReplies()
	s.slots = newSlots(options.MaxRequests, options.MaxBytes, s.replies)
	return s
}

// run is the whole life of the connection. Nothing that the client sends ends more than this.
func (s *session) run() {
	defer s.cancel()
	defer s.conn.Close()
	h := handshake{session: s}
	if err := h.negotiate(); err != nil {
		s.logEnd("nbd: negotiation ended", s.reason(err))
		return
	}
	s.mu.Lock()
	s.export, s.state = h.export, "transmitting"
	s.mu.Unlock()
	s.device, s.size, s.readOnly = h.device, h.size, h.readOnly
	s.log = s.log.With("export", h.export)
	s.log.Info("nbd: session opened", "size", s.size, "read_only", s.readOnly)

	r := newReplier(s)
	var replying sync.WaitGroup
	replying.Go(r.run)
	reason := s.reason(s.receive())
	s.drain()
	replying.Wait()
	// The opening is given back before the connection closes, so that a client that waits for the end of the
	// stream knows that nobody holds the device on its behalf.
	if err := s.device.Close(); err != nil {
		s.log.Warn("nbd: closing the device failed", "error", err)
	}
	s.logEnd("nbd: session closed", reason, "requests", r.replied, "failed", r.failed)
}

func (s *session) logEnd(message string, reason error, more ...any) {
	level := slog.LevelInfo
	switch {
	case reason == nil:
		reason = errors.New("the client disconnected")
	case errors.As(reason, new(garbage)):
		level = slog.LevelWarn
	}
	s.log.Log(context.Background(), level, message, append([]any{"reason", reason.Error()}, more...)...)
}

// reason explains an error of the connection.
func (s *session) reason(err error) error {
	s.mu.Lock()
	stopping := s.stopping
	s.mu.Unlock()
	switch {
	case err == nil:
		return nil
	case stopping && errors.Is(err, os.ErrDeadlineExceeded):
		return errStopping
	case errors.Is(err, os.ErrDeadlineExceeded): // only negotiations have a deadline for reading
		return errSilent
	case errors.Is(err, io.EOF):
		return errLeft
	case errors.Is(err, io.ErrUnexpectedEOF):
		return garbage{"the connection ended in the middle of a message"}
	default:
		return err
	}
}

// stop makes the session end: reading fails at once, an opening under way is cancelled, what is in flight is
// finished.
func (s *session) stop() {
	s.mu.Lock()
	s.stopping = true
	s.conn.SetReadDeadline(time.Unix(1, 0)) // only sets a timer, so it may happen under the lock
	s.mu.Unlock()
	s.cancel()
}

// deadline sets the time by which the client must have answered; zero is never. It cannot undo a stop.
func (s *session) deadline(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn.SetWriteDeadline(t)
	if !s.stopping {
		s.conn.SetReadDeadline(t)
	}
}

// drain waits until every request is answered, however long the device takes: giving the device back with
// requests under way would leave nobody to say what became of them. Only the client's reading has a deadline.
func (s *session) drain() {
	s.mu.Lock()
	s.state = "draining"
	s.mu.Unlock()
	s.draining.Store(true)
	s.conn.SetWriteDeadline(time.Now().Add(s.options.ReplyTimeout))
	s.slots.idle()
	s.replies.close()
}

func (s *session) info() SessionInfo {
	requests, bytes, full := s.slots.load()
	s.mu.Lock()
	defer s.mu.Unlock()
	return SessionInfo{
		ID: s.id, Client: clientName(s.conn), Export: s.export, State: s.state, Since: s.since,
		InFlight: requests, InFlightBytes: bytes, Full: full && s.state == "transmitting",
	}
}

// receive reads requests until the client disconnects (nil) or the session must end.
func (s *session) receive() error {
	for {
		for len(s.in.buffered()) >= requestSize {
			r := decodeRequest(s.in.buffered())
			if r.magic != magicRequest {
				s.submit()
				return garbage{fmt.Sprintf("request magic is %#08x", r.magic)}
			}
			s.in.skip(requestSize)
			if r.kind == cmdDisc {
				s.submit()
				return nil
			}
			if err := s.accept(r); err != nil {
				s.submit()
				return err
			}
		}
		s.submit()
		if err := s.in.fill(); err != nil {
			return err
		}
	}
}

// submit hands the gathered requests to the device. It comes before everything that may block: reading from
// the socket, and waiting for a slot, which only these requests may free.
func (s *session) submit() {
	if len(s.batch) > 0 {
		s.device.Submit(s.batch)
		s.batch = s.batch[:0]
	}
}

// accept takes one request, with its payload, into the batch, or answers a refusal.
func (s *session) accept(r request) error {
	op, code := s.check(r)
	var charge int64
	if code == errnoOK && (op == block.Read || op == block.Write) {
		charge = chargeOf(r.length)
	}
	t := s.slots.take(charge, false)
	if t == nil {
		s.submit()
		t = s.slots.take(charge, true)
	}
	t.cookie = r.cookie
	if code != errnoOK {
		if r.kind == cmdWrite {
			if err := s.dropPayload(r.length); err != nil {
				s.slots.give(t)
				return err
			}
		}
		t.code = code
		s.replies.push(t)
		return nil
	}
	t.request.Op = op
	t.request.FUA = r.flags&cmdFlagFUA != 0 && op != block.Read && op != block.Flush
	t.request.NoHole = r.flags&cmdFlagNoHole != 0
	if op != block.Flush { // its offset and length are reserved
		t.request.Offset, t.request.Length = r.offset, uint64(r.length)
	}
	if op == block.Write {
		if err := s.payload(t); err != nil {
			t.request.Data.Release()
			s.slots.give(t)
			return err
		}
	}
	s.batch = append(s.batch, &t.request)
	return nil
}

// payload reads a write's data: what the buffer has is copied, the rest goes straight to where it belongs.
func (s *session) payload(t *slot) error {
	n := int(t.request.Length)
	if n > len(s.in.buffered()) {
		s.submit()
	}
	t.request.Data = s.options.Pool.Get(n)
	return s.in.read(t.request.Data.Bytes())
}

func (s *session) dropPayload(length uint32) error {
	if length > maxDropBytes {
		return garbage{fmt.Sprintf("write of %d bytes", length)}
	}
	if int(length) > len(s.in.buffered()) {
		s.submit()
	}
	return s.in.drop(int(length))
}

// check tells the operation of a request, or why it is refused. Only writes have a payload, so after a refusal
// the stream is still in step.
func (s *session) check(r request) (block.Op, errno) {
	var op block.Op
	allowed := cmdFlagFUA // on every command: clients are known to set it where it means nothing
	switch r.kind {
	case cmdRead:
		op = block.Read
	case cmdWrite:
		op = block.Write
	case cmdTrim:
		op = block.Trim
	case cmdWriteZeroes:
		op, allowed = block.Zero, cmdFlagFUA|cmdFlagNoHole
	case cmdFlush:
		op = block.Flush
	default:
		return 0, errnoInval
	}
	changes := op == block.Write || op == block.Trim || op == block.Zero
	switch {
	case r.flags&^allowed != 0:
		return 0, errnoInval
	case op == block.Flush:
		return op, errnoOK
	case changes && s.readOnly:
		return 0, errnoPerm
	case r.length == 0 || (r.offset|uint64(r.length))%minBlockBytes != 0:
		return 0, errnoInval
	case (op == block.Read || op == block.Write) && r.length > maxPayloadBytes:
		return 0, errnoInval
	case s.beyondEnd(r):
		if op == block.Write || op == block.Zero {
			return 0, errnoNoSpace
		}
		return 0, errnoInval
	}
	return op, errnoOK
}

// beyondEnd asks the device again only for a range that the announced size does not cover: it may have grown.
func (s *session) beyondEnd(r request) bool {
	within := func(size uint64) bool { return uint64(r.length) <= size && r.offset <= size-uint64(r.length) }
	return !within(s.size) && !within(usableSize(s.device.Size()))
}

// usableSize leaves out what is not a whole sector at the end.
func usableSize(size uint64) uint64 { return size &^ (minBlockBytes - 1) }
