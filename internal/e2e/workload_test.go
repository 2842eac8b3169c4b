package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"samovar/internal/block"
	"samovar/internal/fault"
	"samovar/internal/nbd"
)

// load says how a workload works.
type load struct {
	export    string
	addresses []string // where it connects, in order
	from      uint64   // it uses bytes from here
	size      uint64   // this many
	depth     int      // requests in flight; 0: 16
	most      uint64   // longest request; 0: 64 KiB
	rate      int      // requests a second; 0: 1500
	writes    bool     // nothing but writes and flushes
}

// workload is a client that never stops: it writes, trims, zeroes, reads and flushes at random places, several
// requests at once, reconnects when it loses its connection, and knows what every sector may hold (type model).
// Requests in flight never overlap, so what it knows is exact.
type workload struct {
	t     *testing.T
	load  load
	pool  *block.Pool
	ctx   context.Context
	stop  context.CancelFunc
	ended chan struct{}
	wake  chan struct{} // something that the loop waits for may have changed

	mu      sync.Mutex // guards what follows
	model   *model
	random  *rand.Rand
	client  *nbd.Client // nil: not connected
	at      int         // index of its address
	flight  map[*op]bool
	held    bool // nothing new is sent
	done    int  // requests that succeeded
	refused int  // writes that were answered with "no space"
	last    time.Time
	longest time.Duration // between two answers
	late    []answer      // of requests that were abandoned
	trouble error         // why it is not connected
	count   int
}

// op is a request in flight.
type op struct {
	block.Request
	number    uint64
	first, n  uint64 // sectors
	seen      uint64 // flush: what was acknowledged before it
	client    *nbd.Client
	abandoned bool
}

// answer of a request that nobody waited for any more.
type answer struct {
	op     block.Op
	number uint64 // of a write
	err    error
}

// run starts a workload, which ends with the test at the latest.
func (r *rig) run(l load) *workload {
	if l.depth == 0 {
		l.depth = 16
	}
	if l.most == 0 {
		l.most = 64 << 10
	}
	if l.rate == 0 {
		l.rate = 1500
	}
	w := &workload{
		t: r.t, load: l, pool: block.NewPool(), ended: make(chan struct{}), wake: make(chan struct{}, 1),
		model: newModel(l.from, l.size), random: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1)),
		flight: map[*op]bool{}, last: time.Now(),
	}
	w.ctx, w.stop = context.WithCancel(context.Background())
	r.t.Cleanup(w.end)
	go w.loop()
	return w
}

// end ends the workload; what is in flight is not waited for long.
func (w *workload) end() {
	w.stop()
	<-w.ended
}

func (w *workload) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// loop connects and sends.
func (w *workload) loop() {
	defer close(w.ended)
	defer w.leave()
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for w.ctx.Err() == nil {
		w.mu.Lock()
		connected := w.client != nil
		w.mu.Unlock()
		if !connected && !w.connect() {
			return
		}
		for range max(1, w.load.rate/200) {
			if !w.send() {
				break
			}
		}
		select {
		case <-pace.C:
		case <-w.wake:
		case <-w.ctx.Done():
		}
	}
}

func (w *workload) leave() {
	w.mu.Lock()
	c := w.client
	w.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// connect tries the addresses in order, with growing pauses, until one serves.
func (w *workload) connect() bool {
	d := nbd.Dialer{Pool: w.pool, CloseTimeout: time.Second}
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		w.mu.Lock()
		list := w.load.addresses
		w.mu.Unlock()
		for i, at := range list {
			ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
			c, err := d.Dial(ctx, at, w.load.export)
			cancel()
			w.mu.Lock()
			if w.trouble = err; err == nil {
				w.client, w.at = c, i
			}
			w.mu.Unlock()
			if err == nil {
				return true
			}
		}
		select {
		case <-w.ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
}

// send sends one request, if it may.
func (w *workload) send() bool {
	w.mu.Lock()
	c := w.client
	if c == nil || w.held || len(w.flight) >= w.load.depth {
		w.mu.Unlock()
		return false
	}
	o := w.choose()
	if o == nil {
		w.mu.Unlock()
		return false
	}
	o.client = c
	w.flight[o] = true
	w.mu.Unlock()
	c.Submit([]*block.Request{&o.Request})
	return true
}

// choose makes a request. The caller holds mu.
func (w *workload) choose() *op {
	w.count++
	o := &op{}
	o.Done = func(_ *block.Request, err error) { w.answered(o, err) }
	o.Op = block.Write
	switch dice := w.random.IntN(100); {
	case w.count%150 == 0:
		o.Op, o.seen = block.Flush, w.model.acks
		return o
	case w.load.writes:
	case dice < 4:
		o.Op = block.Trim
	case dice < 8:
		o.Op, o.NoHole = block.Zero, w.random.IntN(2) == 0
	case dice < 30:
		o.Op = block.Read
	}
	for range 100 {
		o.n = 1 + w.random.Uint64N(w.load.most/sectorBytes)
		if w.random.IntN(2) == 0 {
			o.n = min(8, w.load.most/sectorBytes)
		}
		o.first = w.random.Uint64N(w.load.size/sectorBytes - o.n + 1)
		if w.model.take(o.first, o.n) {
			w.prepare(o)
			return o
		}
	}
	return nil
}

// prepare fills a request in. The caller holds mu.
func (w *workload) prepare(o *op) {
	o.Offset, o.Length = w.load.from+o.first*sectorBytes, o.n*sectorBytes
	if o.Op == block.Read {
		return
	}
	o.FUA = w.random.IntN(20) == 0
	o.number = w.model.begin(o.first, o.n, o.Op != block.Write)
	if o.Op == block.Write {
		o.Data = w.pool.Get(int(o.Length))
		for i := range o.n {
			stamp(o.Data.Bytes()[i*sectorBytes:][:sectorBytes], o.number, o.Offset/sectorBytes+i)
		}
	}
}

// answered takes the end of a request.
func (w *workload) answered(o *op, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.nudge()
	data := o.Data
	defer data.Release()
	if o.abandoned {
		w.late = append(w.late, answer{o.Op, o.number, err})
		return
	}
	delete(w.flight, o)
	switch {
	case err == nil:
		w.succeeded(o, data)
	case fault.Is(err, fault.NoSpace) && o.number > 0:
		w.refused++
		w.model.refuse(o.first, o.n, o.number)
		w.beat()
	default:
		// Its writes may have happened or not. The connection may be good for more, but not for this test.
		w.trouble = err
		if w.client == o.client {
			w.client = nil
			go o.client.Close() // it waits for Done, so not from here
		}
	}
	if o.n > 0 {
		w.model.give(o.first, o.n)
	}
}

// beat notes that I/O moved on. The caller holds mu.
func (w *workload) beat() {
	now := time.Now()
	w.longest, w.last = max(w.longest, now.Sub(w.last)), now
}

// succeeded notes what is now certain. The caller holds mu.
func (w *workload) succeeded(o *op, data *block.Buffer) {
	w.done++
	w.beat()
	switch o.Op {
	case block.Flush:
		w.model.flushed = max(w.model.flushed, o.seen)
	case block.Read:
		if err := w.model.check(o.first, data.Bytes(), false); err != nil {
			w.t.Errorf("read of %d bytes at %d: %v", o.Length, o.Offset, err)
		}
	default:
		w.model.acknowledge(o.first, o.n, o.number, o.FUA)
	}
}

// wait waits until a condition holds; the caller of the condition holds mu.
func (w *workload) wait(what string, limit time.Duration, holds func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(limit)
	for {
		w.mu.Lock()
		ok, trouble, flight := holds(), w.trouble, len(w.flight)
		w.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("waited %v until %s; %d requests in flight, last trouble: %v", limit, what, flight, trouble)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// progress waits until n more requests have succeeded.
func (w *workload) progress(n int) {
	w.t.Helper()
	w.mu.Lock()
	target := w.done + n
	w.mu.Unlock()
	w.wait(fmt.Sprintf("%d more requests succeeded", n), patience, func() bool { return w.done >= target })
}

// pauses tells the longest time without an answer since it was last asked.
func (w *workload) pauses() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	longest := max(w.longest, time.Since(w.last))
	w.longest, w.last = 0, time.Now()
	return longest
}

// hold sends nothing new and waits until nothing is in flight.
func (w *workload) hold() {
	w.t.Helper()
	w.mu.Lock()
	w.held = true
	w.mu.Unlock()
	w.wait("nothing is in flight", patience, func() bool { return len(w.flight) == 0 })
}

// release goes on after hold.
func (w *workload) release() {
	w.mu.Lock()
	w.held, w.last = false, time.Now()
	w.mu.Unlock()
	w.nudge()
}

// abandon leaves the connection open, with whatever is in flight on it, and connects elsewhere. Answers that still
// come are kept in late; what was in flight may have happened or not.
func (w *workload) abandon(addresses []string) *nbd.Client {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.client
	w.client, w.load.addresses = nil, addresses
	for o := range w.flight {
		o.abandoned = true
		if o.n > 0 {
			w.model.give(o.first, o.n)
		}
	}
	w.flight = map[*op]bool{}
	w.nudge()
	return old
}

// verify reads everything and compares it with what must be there: every acknowledged write, or, where lossy, every
// flushed write or a later one. It leaves the workload held.
func (w *workload) verify(lossy bool) {
	w.t.Helper()
	w.hold()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		w.mu.Lock()
		c := w.client
		w.mu.Unlock()
		if c == nil {
			continue
		}
		if err = w.readAll(c, lossy); !fault.Is(err, fault.Unavailable) {
			break
		}
		w.mu.Lock()
		if w.client == c {
			w.client = nil
		}
		w.mu.Unlock()
		c.Close()
		w.nudge()
	}
	if err != nil {
		w.t.Fatalf("verify: %v", err)
	}
}

func (w *workload) readAll(c block.Device, lossy bool) error {
	var wrong []error
	const step = mib / sectorBytes
	for first := uint64(0); first < w.load.size/sectorBytes; first += step {
		n := min(step, w.load.size/sectorBytes-first)
		data, err := read(c, w.load.from+first*sectorBytes, n*sectorBytes)
		if err != nil {
			return err
		}
		w.mu.Lock()
		err = w.model.check(first, data.Bytes(), lossy)
		w.mu.Unlock()
		data.Release()
		if err != nil && len(wrong) < 10 {
			wrong = append(wrong, err)
		}
	}
	return errors.Join(wrong...)
}

// read reads from a device and waits for the answer.
func read(d block.Device, offset, length uint64) (*block.Buffer, error) {
	r := &block.Request{Op: block.Read, Offset: offset, Length: length}
	err := <-begin(d, r)
	return r.Data, err
}

// begin submits a request; the channel brings its end.
func begin(d block.Device, r *block.Request) <-chan error {
	end := make(chan error, 1)
	r.Done = func(_ *block.Request, err error) { end <- err }
	d.Submit([]*block.Request{r})
	return end
}
