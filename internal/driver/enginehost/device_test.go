package enginehost

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"samovar/internal/block"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

func (r *rig) device() block.Device { return r.Device(false, func() {}) }

func (r *rig) do(d block.Device, op block.Op, off, n uint64, value byte) error {
	r.t.Helper()
	p := r.request(op, off, n, value)
	d.Submit([]*block.Request{p.q})
	return p.wait()
}

func (r *rig) reads(d block.Device, off uint64, value byte, n uint64) {
	r.t.Helper()
	p := r.request(block.Read, off, n, 0)
	d.Submit([]*block.Request{p.q})
	check(r.t, p.wait())
	if !bytes.Equal(p.q.Data.Bytes(), bytes.Repeat([]byte{value}, int(n))) {
		r.t.Fatalf("at %d: other bytes than %d", off, value)
	}
	p.q.Data.Release()
}

func TestRequests(t *testing.T) {
	t.Parallel()
	r := serving(t, nil)
	var closed atomic.Int32
	d := r.Device(false, func() { closed.Add(1) })
	if d.Size() != testSize || d.ReadOnly() || r.Volume() != testVolume {
		t.Fatal("another device")
	}
	check(t, r.do(d, block.Write, 4096, 8192, 7))
	r.reads(d, 4096, 7, 8192)
	check(t, r.do(d, block.Zero, 4096, 4096, 0))
	r.reads(d, 4096, 0, 4096)
	check(t, r.do(d, block.Write, 150<<20, 512, 1))
	check(t, r.do(d, block.Trim, 0, testSize, 0)) // seven of the engine's requests
	r.reads(d, 150<<20, 0, 512)
	r.reads(d, 8192, 0, 4096)
	check(t, r.do(d, block.Flush, 0, 0, 0))
	for _, bad := range []struct {
		op     block.Op
		off, n uint64
	}{
		{block.Read, testSize, 512}, {block.Write, testSize - 512, 1024}, {block.Trim, 512, testSize}, {block.Trim, 1<<64 - 512, 64 << 20},
		{block.Zero, 0, 0}, {block.Read, 1, 512}, {block.Trim, testSize + 512, 1 << 63}, {block.Write, 0, 33 << 20},
	} {
		if err := r.do(d, bad.op, bad.off, bad.n, 0); !fault.Is(err, fault.Invalid) {
			t.Fatalf("%v: %v", bad, err)
		}
	}
	ro := r.Device(true, func() {})
	for _, op := range []block.Op{block.Write, block.Trim, block.Zero} {
		if err := r.do(ro, op, 0, 512, 0); !fault.Is(err, fault.Permission) {
			t.Fatal(err)
		}
	}
	check(t, r.do(ro, block.Flush, 0, 0, 0))
	r.reads(ro, 0, 0, 512)
	check(t, d.Close())
	check(t, d.Close())
	if closed.Load() != 1 {
		t.Fatalf("closed %d times", closed.Load())
	}
	r.idle()
}

// idle checks that nothing is counted any more.
func (r *rig) idle() {
	r.t.Helper()
	await(r.t, "the gate is empty", func() bool {
		r.gate.mu.Lock()
		defer r.gate.mu.Unlock()
		return r.gate.inFlight == load{} && r.gate.held == load{}
	})
}

// Batches larger than the bound, from many sessions at once: each waits for room that only others can make.
func TestManyLargeBatches(t *testing.T) {
	t.Parallel()
	r := serving(t, nil)
	var sessions sync.WaitGroup
	for s := range uint64(8) {
		sessions.Go(func() {
			d := r.device()
			for range 5 {
				var batch []*block.Request
				var all []*pending
				for i := range uint64(20) {
					p := r.request(block.Write, s<<20+i*64<<10%(1<<20), 64<<10, byte(i))
					batch, all = append(batch, p.q), append(all, p)
				}
				f := r.request(block.Flush, 0, 0, 0)
				d.Submit(append(batch, f.q))
				for _, p := range append(all, f) {
					if err := p.wait(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	sessions.Wait()
	r.idle()
}

// No more is in flight than the bound, and a request that is larger than it goes alone.
func TestBound(t *testing.T) {
	t.Parallel()
	r := serving(t, nil)
	r.copies.hold()
	d := r.device()
	var all []*pending
	for i := range uint64(20) {
		all = append(all, r.request(block.Write, i<<20, 512, 1))
	}
	submitted := make(chan struct{})
	go func() {
		defer close(submitted)
		for _, p := range all {
			d.Submit([]*block.Request{p.q})
		}
		big := r.request(block.Write, 100<<20, 4<<20, 2)
		d.Submit([]*block.Request{big.q})
		all = append(all, big)
	}()
	await(t, "as many as may be are under way", func() bool { return r.copies.waiting() == 16 }) // 8 on two replicas
	select {
	case <-submitted:
		t.Fatal("more were taken")
	default:
	}
	r.copies.let()
	<-submitted
	for _, p := range all {
		check(t, p.wait())
	}
	r.idle()
}

// What is answered but still held counts too, with a bound of its own.
func TestHeldIsBounded(t *testing.T) {
	t.Parallel()
	g := newGate(4, 1<<20)
	q := &block.Request{Op: block.Write, Length: 512 << 10}
	for range 8 {
		if !g.enter(q, false) {
			t.Fatal("no room")
		}
		g.answered(q)
	}
	if g.enter(q, false) {
		t.Fatal("4 MiB are held, and more is taken")
	}
	if g.enter(&block.Request{Op: block.Trim, Length: 1 << 40}, false) != true {
		t.Fatal("a trim needs no memory")
	}
	entered := make(chan bool)
	go func() { entered <- g.enter(q, true) }()
	g.dropped(memory(q))
	if !<-entered {
		t.Fatal("not let in")
	}
	go func() { entered <- g.enter(q, true) }()
	g.end()
	if !<-entered {
		t.Fatal("not let through at the end")
	}
}

// The engine ends while requests are in flight, waiting in the engine, and waiting to be let in.
func TestAbortInFlight(t *testing.T) {
	t.Parallel()
	r := serving(t, nil)
	r.copies.hold()
	d := r.device()
	var all []*pending
	var submitting sync.WaitGroup
	for s := range uint64(4) {
		var batch []*block.Request
		for i := range uint64(10) {
			p := r.request(block.Write, (10*s+i)%15<<20, 512, 1) // some wait for others
			batch, all = append(batch, p.q), append(all, p)
		}
		submitting.Go(func() { d.Submit(batch) })
	}
	trim := r.request(block.Trim, 0, testSize, 0)
	all = append(all, trim)
	submitting.Go(func() { d.Submit([]*block.Request{trim.q}) })
	await(t, "some are under way", func() bool { return r.copies.waiting() > 0 })
	release := make(chan error, 1)
	go func() {
		_, err := r.Hold(context.Background(), volume.Range{Length: testSize / 8})
		release <- err
	}()
	r.Abort()
	r.Abort()
	submitting.Wait()
	for _, p := range all {
		if err := p.wait(); !fault.Is(err, fault.Aborted) && !fault.Is(err, fault.Shutdown) {
			t.Fatal(err)
		}
	}
	if err := <-release; !fault.Is(err, fault.Shutdown) {
		t.Fatal(err)
	}
	if err := r.do(d, block.Read, 0, 512, 0); !fault.Is(err, fault.Shutdown) {
		t.Fatal(err)
	}
	if err := r.do(d, block.Trim, 0, testSize, 0); !fault.Is(err, fault.Shutdown) {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.over() {
			t.Fatal("answered twice")
		}
	}
}

// Detaching waits for what is in flight; a caller whose time ends is told so, and it goes on.
func TestDetachDrains(t *testing.T) {
	t.Parallel()
	r := serving(t, nil)
	d := r.device()
	r.copies.hold()
	p := r.request(block.Write, 0, 512, 1)
	d.Submit([]*block.Request{p.q})
	await(t, "it is under way", func() bool { return r.copies.waiting() == 2 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Detach(ctx); !fault.Is(err, fault.Unavailable) {
		t.Fatal(err)
	}
	if p.over() {
		t.Fatal("answered before it was done")
	}
	r.copies.let()
	check(t, p.wait())
	check(t, r.Detach(within(t)))
	check(t, r.Detach(within(t)))
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if r.store.record.Holder != "" || r.store.record.Epoch != 1 {
		t.Fatalf("%+v", r.store.record)
	}
}

// A range that is held is not written to, reads go on, and a hold that lasted too long says so.
func TestHold(t *testing.T) {
	t.Parallel()
	r := serving(t, nil)
	d := r.device()
	at := volume.Range{Offset: 1 << 20, Length: 1 << 20}
	release, err := r.Hold(within(t), at)
	check(t, err)
	p := r.request(block.Write, 1<<20, 512, 1)
	d.Submit([]*block.Request{p.q})
	check(t, r.do(d, block.Write, 0, 512, 2))
	r.reads(d, 1<<20+512, 0, 512)
	if p.over() {
		t.Fatal("written to what is held")
	}
	if !release() {
		t.Fatal("it did not last")
	}
	check(t, p.wait())
	if release() {
		t.Fatal("released twice")
	}

	release, err = r.Hold(within(t), at)
	check(t, err)
	check(t, r.do(d, block.Write, 1<<20, 512, 3)) // waits for the deadline
	if release() {
		t.Fatal("it lasted beyond its deadline")
	}

	r.copies.hold()
	p = r.request(block.Write, 1<<20, 512, 4)
	d.Submit([]*block.Request{p.q})
	await(t, "it is under way", func() bool { return r.copies.waiting() == 2 })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := r.Hold(ctx, at); !fault.Is(err, fault.Unavailable) {
		t.Fatal(err)
	}
	r.copies.let()
	check(t, p.wait())
	check(t, r.do(d, block.Write, 1<<20, 512, 5)) // nothing holds it
	if _, err := r.Hold(within(t), volume.Range{Offset: testSize, Length: 512}); !fault.Is(err, fault.Invalid) {
		t.Fatal(err)
	}
	check(t, r.Detach(within(t)))
	if _, err := r.Hold(within(t), at); !fault.Is(err, fault.Shutdown) {
		t.Fatal(err)
	}
}

// A replica that answers a read with something else than its bytes: an error, not a crash.
func TestBadAnswers(t *testing.T) {
	t.Parallel()
	r := serving(t, nil)
	d := r.device()
	for _, payload := range []replication.Payload{nil, r.copies.buffers.Get(512), "text"} {
		r.copies.mu.Lock()
		r.copies.spoil = func(m replication.Message) replication.Message {
			if _, read := m.Payload.(*block.Buffer); read {
				m.Payload = payload
			}
			return m
		}
		r.copies.mu.Unlock()
		if err := r.do(d, block.Read, 0, 4096, 0); !fault.Is(err, fault.Corrupt) {
			t.Fatal(err)
		}
	}
	r.idle()
}
