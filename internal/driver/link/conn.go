package link

import (
	"context"
	"crypto/rand"
	"io"
	"net"
	"sync"
	"time"

	"samovar/internal/block"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
	"samovar/internal/wire"
)

// Options are shared by the links of a node.
type Options struct {
	Cluster  [16]byte
	Buffers  *block.Pool
	Counters *Counters
	// Handshake bounds connecting and the preambles.
	Handshake time.Duration
}

// Conn is a session over a socket.
type Conn struct {
	nc       net.Conn
	counters *Counters
	dec      *wire.Decoder
	enc      *wire.Encoder
	wake     chan struct{}
	done     chan struct{} // closed when both goroutines have ended

	mu      sync.Mutex // guards what follows
	queue   []replication.Message
	bytes   int // of payloads in queue
	hangup  bool
	aborted bool
	cause   error // why this end gave up; nil: the stream tells
}

// Limits of what waits to be sent. They are far above what an engine has in flight, and only keep a peer that asks and
// does not read from taking all memory.
const (
	queueItems = 64 << 10
	queueBytes = 1 << 30
	// parting is how long a peer may take to read what was sent before a hangup.
	parting = 5 * time.Second
)

// Target names the replica that a session is for.
type Target struct {
	Volume volume.ID
	Pool   volume.PoolID
	Epoch  volume.Epoch
	Size   uint64
}

// Dial opens a session to the node at address.
func Dial(ctx context.Context, o Options, purpose wire.Purpose, address string, t Target) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Handshake)
	defer cancel()
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "connect to node at "+address, err)
	}
	deadline, _ := ctx.Deadline()
	stop := context.AfterFunc(ctx, func() { nc.Close() }) // wakes the handshake
	s, err := shake(nc, o, purpose, deadline)
	if !stop() && err == nil {
		err = fault.New(fault.Unavailable, "shake hands", "given up")
	}
	if err != nil {
		return nil, fault.Wrap(fault.KindOf(err), "connect to node at "+address, err)
	}
	s = s.Bind(t.Volume, t.Pool, t.Epoch, t.Size)
	c := newConn(nc, o)
	c.dec, c.enc = wire.NewDecoder(c.counted(), o.Buffers, s), wire.NewEncoder(s)
	return c, nil
}

func shake(nc net.Conn, o Options, purpose wire.Purpose, deadline time.Time) (s wire.Session, err error) {
	defer func() {
		if err != nil {
			nc.Close()
		}
	}()
	if err := nc.SetDeadline(deadline); err != nil {
		return s, fault.Wrap(fault.Unavailable, "set deadline", err)
	}
	preamble, err := wire.NewPreamble(o.Cluster, purpose, rand.Reader)
	if err != nil {
		return s, err
	}
	if purpose == wire.Replica {
		s, err = wire.Answer(nc, preamble)
	} else {
		s, err = wire.Open(nc, preamble)
	}
	if err != nil {
		return s, err
	}
	if err := nc.SetDeadline(time.Time{}); err != nil {
		return s, fault.Wrap(fault.Unavailable, "clear deadline", err)
	}
	return s, nil
}

func newConn(nc net.Conn, o Options) *Conn {
	return &Conn{nc: nc, counters: o.Counters, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// counted counts what is read from the socket.
func (c *Conn) counted() io.Reader { return &countingReader{c.nc, c.counters} }

type countingReader struct {
	r io.Reader
	c *Counters
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.c.Received.Add(uint64(n))
	return n, err
}

// Run starts the two goroutines of the session. first are messages that were read already.
func (c *Conn) Run(r Receiver, first []replication.Message) {
	writer := make(chan struct{})
	go func() {
		defer close(writer)
		c.write()
	}()
	go func() {
		defer close(c.done)
		if len(first) > 0 {
			r.Received(first)
		}
		err := c.read(r)
		c.Close()
		<-writer
		c.mu.Lock()
		if c.cause != nil {
			err = c.cause
		}
		c.mu.Unlock()
		r.Closed(err)
	}()
}

func (c *Conn) read(r Receiver) error {
	for {
		messages, err := c.dec.Next()
		if len(messages) > 0 {
			r.Received(messages)
		}
		if err != nil {
			return err
		}
	}
}

// write sends what is queued, each batch in one vectored write.
func (c *Conn) write() {
	var spare []replication.Message
	for range c.wake {
		c.mu.Lock()
		batch, hangup, aborted := c.queue, c.hangup, c.aborted
		c.queue, c.bytes = spare[:0], 0
		c.mu.Unlock()
		if aborted {
			return
		}
		if !c.flush(batch) || hangup {
			c.nc.Close() // wakes the reader
			return
		}
		clear(batch)
		spare = batch
	}
}

func (c *Conn) flush(batch []replication.Message) bool {
	const most = 4 << 20
	for i := range batch {
		if err := c.enc.Append(&batch[i]); err != nil {
			c.giveUp(err)
			return false
		}
		if c.enc.Size() >= most && !c.push() {
			return false
		}
	}
	return c.enc.Len() == 0 || c.push()
}

func (c *Conn) push() bool {
	c.counters.Sent.Add(uint64(c.enc.Size()))
	return c.enc.Flush(c.nc) == nil
}

// Send queues messages.
func (c *Conn) Send(messages []replication.Message) {
	c.mu.Lock()
	full := false
	if !c.aborted && !c.hangup {
		c.queue = append(c.queue, messages...)
		for i := range messages {
			c.bytes += payloadBytes(messages[i].Payload)
		}
		full = len(c.queue) > queueItems || c.bytes > queueBytes
	}
	c.mu.Unlock()
	if full {
		c.giveUp(fault.New(fault.Unavailable, "send to "+c.nc.RemoteAddr().String(), "the peer does not read what it asked for"))
		return
	}
	c.nudge()
}

func payloadBytes(p replication.Payload) (n int) {
	switch p := p.(type) {
	case *block.Buffer:
		return p.Len()
	case *wire.Segments:
		for i := range p.List {
			if d := p.List[i].Data; d != nil {
				n += d.Len()
			}
		}
	}
	return n
}

func (c *Conn) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Hangup closes the session after what was sent, or after a while if the peer does not read it.
func (c *Conn) Hangup() {
	c.mu.Lock()
	c.hangup = true
	c.mu.Unlock()
	c.nc.SetWriteDeadline(time.Now().Add(parting)) // an error says only that it is closed already
	c.nudge()
}

// Close closes the session at once.
func (c *Conn) Close() { c.giveUp(nil) }

func (c *Conn) giveUp(cause error) {
	c.mu.Lock()
	c.aborted, c.queue = true, nil
	if c.cause == nil {
		c.cause = cause
	}
	c.mu.Unlock()
	c.nc.Close() // an error says only that it is closed already
	c.nudge()
}

// Done is closed when the session has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }
