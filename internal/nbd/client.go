package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"samovar/internal/block"
	"samovar/internal/fault"
)

// maxEffectBytes is the longest trim or zero that is sent in one request. The protocol's length has 32 bits;
// servers differ in what they take beyond their largest payload, and 1 GiB is taken by all that are known.
const maxEffectBytes = 1 << 30

// Client is an export of an NBD server as a block.Device. It has two goroutines: the sender writes what Submit
// queued, the receiver completes what the server answers. When the connection is lost, every request in flight
// and every later one completes with fault.Unavailable; whether a lost write took effect is then unknown.
type Client struct {
	export     Export
	conn       net.Conn
	pool       *block.Pool
	log        *slog.Logger
	maxPayload uint64
	timeout    time.Duration

	flight *flight
	queue  *sendQueue
	in     *intake // owned by the receiver
	ended  sync.WaitGroup
}

func newClient(d Dialer, conn net.Conn, in *intake, export Export) *Client {
	if d.Pool == nil {
		d.Pool = block.NewPool()
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.MaxRequests <= 0 {
		d.MaxRequests = 256
	}
	if d.MaxBytes <= 0 {
		d.MaxBytes = 64 << 20
	}
	if d.CloseTimeout <= 0 {
		d.CloseTimeout = 30 * time.Second
	}
	c := &Client{
		export: export, conn: conn, pool: d.Pool, log: d.Logger.With("export", export.Name), maxPayload: maxPayloadBytes,
		timeout: d.CloseTimeout, in: in, queue: newSendQueue(), flight: newFlight(d.MaxRequests, d.MaxBytes),
	}
	if export.MaxPayload >= minBlockBytes {
		c.maxPayload = min(c.maxPayload, uint64(export.MaxPayload))
	}
	c.maxPayload &^= minBlockBytes - 1 // parts stay aligned
	c.ended.Go(c.send)
	c.ended.Go(c.receive)
	return c
}

// Export is what the server said when the client connected.
func (c *Client) Export() Export { return c.export }

// Size is the export's size in bytes.
func (c *Client) Size() uint64 { return c.export.Size }

// ReadOnly tells whether the server refuses changes.
func (c *Client) ReadOnly() bool { return c.export.Has(FlagReadOnly) }

// Submit sends a batch. It waits while the bounds of the flight are reached, so it must not be called from a
// request's Done. A flush covers what was answered on this connection before, and on others of the same export
// if the server announced CAN_MULTI_CONN.
func (c *Client) Submit(batch []*block.Request) {
	messages := messagePool.Get().(*[]message)
	*messages = (*messages)[:0]
	for _, r := range batch {
		if err := c.check(r); err != nil {
			r.Done(r, err)
			continue
		}
		c.enqueue(r, messages)
	}
	c.queue.push(*messages)
	clear(*messages)
	messagePool.Put(messages)
}

var messagePool = sync.Pool{New: func() any { return new([]message) }}

// check refuses what cannot succeed or what the server did not announce.
func (c *Client) check(r *block.Request) error {
	refuse := func(kind fault.Kind, text string) error {
		return fault.New(kind, "nbd: export "+c.export.Name, text)
	}
	var need uint16
	switch r.Op {
	case block.Read, block.Write:
	case block.Trim:
		need = FlagSendTrim
	case block.Zero:
		need = FlagSendWriteZeroes
	case block.Flush:
		need = FlagSendFlush
	default:
		return refuse(fault.Invalid, fmt.Sprintf("unknown operation %d", r.Op))
	}
	changes := r.Op == block.Write || r.Op == block.Trim || r.Op == block.Zero
	if changes && c.ReadOnly() {
		return refuse(fault.Permission, "the export is read-only")
	}
	if need != 0 && !c.export.Has(need) {
		return refuse(fault.Invalid, fmt.Sprintf("the server does not support %s", flagName(need)))
	}
	if changes && r.FUA && !c.export.Has(FlagSendFUA) {
		return refuse(fault.Invalid, "the server does not support FUA")
	}
	if r.Op == block.Flush {
		return nil
	}
	if r.Length == 0 || r.Offset > c.export.Size || r.Length > c.export.Size-r.Offset {
		return refuse(fault.Invalid, fmt.Sprintf("%d bytes at %d do not lie within %d", r.Length, r.Offset, c.export.Size))
	}
	if r.Op == block.Write && (r.Data == nil || uint64(r.Data.Len()) != r.Length) {
		return refuse(fault.Invalid, "the data of the write has another length than the write")
	}
	return nil
}

func flagName(flag uint16) string {
	switch flag {
	case FlagSendTrim:
		return "trim"
	case FlagSendWriteZeroes:
		return "write zeroes"
	default:
		return "flush"
	}
}

// enqueue gives a request its places in the flight and appends its messages, in several parts if it is longer
// than the server takes at once.
func (c *Client) enqueue(r *block.Request, messages *[]message) {
	step := uint64(maxEffectBytes)
	if r.Op == block.Read || r.Op == block.Write {
		step = c.maxPayload
	}
	var whole *parts
	if r.Length > step {
		whole = &parts{left: int((r.Length + step - 1) / step)}
		if r.Op == block.Read {
			whole.data = c.pool.Get(int(r.Length))
		}
	}
	// The request may be complete, and its maker's again, as soon as its last part has entered; so everything
	// is read from a copy.
	op, flags, offset, length, data := r.Op, commandFlags(r), r.Offset, r.Length, r.Data
	for at := uint64(0); ; at += step {
		n := min(step, length-at)
		p := pending{request: r, parts: whole, at: at, length: n}
		m := message{header: request{flags: flags, kind: commandOf(op)}}
		if op != block.Flush {
			m.header.offset, m.header.length = offset+at, uint32(n)
		}
		if op == block.Read || op == block.Write {
			p.charge = int64(n)
		}
		if op == block.Write {
			m.data, m.payload = data.Retain(), data.Bytes()[at:at+n]
		}
		last := at+n >= length
		cookie, full, err := c.flight.enter(p, false)
		if full {
			// What holds the places may be our own messages: send them before waiting.
			c.queue.push(*messages)
			*messages = (*messages)[:0]
			cookie, _, err = c.flight.enter(p, true)
		}
		if err != nil {
			m.data.Release()
			c.complete(p, err)
		} else {
			m.header.cookie = cookie
			*messages = append(*messages, m)
		}
		if last {
			return
		}
	}
}

func commandOf(op block.Op) command {
	switch op {
	case block.Read:
		return cmdRead
	case block.Write:
		return cmdWrite
	case block.Trim:
		return cmdTrim
	case block.Zero:
		return cmdWriteZeroes
	default:
		return cmdFlush
	}
}

func commandFlags(r *block.Request) uint16 {
	var flags uint16
	if r.FUA && r.Op != block.Read && r.Op != block.Flush {
		flags |= cmdFlagFUA
	}
	if r.NoHole && r.Op == block.Zero {
		flags |= cmdFlagNoHole
	}
	return flags
}

// complete finishes one part, and with the last one the request.
func (c *Client) complete(p pending, err error) {
	r := p.request
	if p.parts != nil {
		last, outcome := p.parts.finish(err)
		if !last {
			return
		}
		if err = outcome; r.Op == block.Read {
			if err == nil {
				r.Data = p.parts.data
			} else {
				p.parts.data.Release()
			}
		}
	}
	r.Done(r, err)
}

// send writes queued messages until the queue is closed, or drops them once writing failed.
func (c *Client) send() {
	out := newGather(c.conn)
	broken := false
	var batch []message
	for {
		if batch = c.queue.next(batch); len(batch) == 0 {
			return
		}
		for i, m := range batch {
			if broken {
				break
			}
			encodeRequest(out.header(requestSize), m.header)
			if len(m.payload) > 0 {
				out.data(m.payload)
			}
			if out.full() || i == len(batch)-1 {
				if err := out.send(); err != nil {
					broken = true
					c.conn.Close() // the receiver completes what is in flight
				}
			}
		}
		releaseAll(batch)
	}
}

// receive completes requests until the connection ends, then everything that is left.
func (c *Client) receive() {
	var err error
	for err == nil {
		err = c.reply()
	}
	c.conn.Close()
	c.queue.close()
	if errors.Is(err, io.EOF) {
		err = errors.New("the server closed the connection")
	}
	lost := fault.New(fault.Unavailable, "nbd: export "+c.export.Name, "the connection is lost: "+err.Error())
	left := c.flight.lose(lost)
	if len(left) > 0 {
		c.log.Warn("nbd: connection lost", "in_flight", len(left), "error", err)
	}
	for _, p := range left {
		c.complete(p, lost)
	}
}

// reply takes one reply.
func (c *Client) reply() error {
	b, err := c.in.need(replySize)
	if err != nil {
		return err
	}
	magic, code, cookie := binary.BigEndian.Uint32(b), errno(binary.BigEndian.Uint32(b[4:])), binary.BigEndian.Uint64(b[8:])
	if magic != magicReply {
		return fmt.Errorf("reply magic is %#08x", magic)
	}
	p, ok := c.flight.find(cookie)
	if !ok {
		return fmt.Errorf("reply to a request that is not in flight, cookie %#x", cookie)
	}
	if code != errnoOK {
		c.flight.leave(cookie)
		c.complete(p, fault.New(kindOf(code), "nbd: export "+c.export.Name, "the server answered "+code.String()))
		return nil
	}
	if p.request.Op == block.Read {
		if err := c.take(p); err != nil {
			return err
		}
	}
	c.flight.leave(cookie)
	c.complete(p, nil)
	return nil
}

// take reads the data of a read.
func (c *Client) take(p pending) error {
	if p.parts != nil {
		return c.in.read(p.parts.data.Bytes()[p.at : p.at+p.length])
	}
	data := c.pool.Get(int(p.length))
	if err := c.in.read(data.Bytes()); err != nil {
		data.Release()
		return err
	}
	p.request.Data = data
	return nil
}

// Close waits for what is in flight, says goodbye and waits until the server has closed the connection, which
// it does after it gave its opening back. All of it is limited by CloseTimeout; requests that are still in
// flight then complete with fault.Unavailable.
func (c *Client) Close() error {
	if !c.flight.close() {
		c.ended.Wait()
		return nil
	}
	cut := time.AfterFunc(c.timeout, func() { c.conn.Close() })
	defer cut.Stop()
	c.flight.idle()
	c.queue.push([]message{{header: request{kind: cmdDisc}}})
	c.queue.close()
	c.ended.Wait()
	return nil
}
