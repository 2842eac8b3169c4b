package replicahost

import (
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"samovar/internal/block"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/store/disk/memory"
	"samovar/internal/volume"
	"samovar/internal/wire"
)

// A copy goes from one host to another: data, holes, and both in one range.
func TestCopy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	source, target := r.pool(volume.PoolID{1}), r.pool(volume.PoolID{2})
	from, _ := r.dial(source, testFence)
	to, _ := r.dial(target, testFence)
	from.write(r.buffers, 0, 1, 1<<20)
	from.write(r.buffers, 1<<20+64<<10, 2, 64<<10)
	from.write(r.buffers, testSize-4096, 3, 4096)
	to.write(r.buffers, 1<<20, 9, 1<<20) // goes, where the source has holes
	for off := uint64(0); off < testSize; off += 1 << 20 {
		at := volume.Range{Offset: off, Length: min(1<<20, testSize-off)}
		to.ok(replication.Message{Kind: replication.Copy, Range: at, Source: source.id})
	}
	to.reads(0, 1, 1<<20)
	to.reads(1<<20, 0, 64<<10)
	to.reads(1<<20+64<<10, 2, 64<<10)
	to.reads(1<<20+128<<10, 0, 1<<20-128<<10)
	to.reads(testSize-4096, 3, 4096)
	for _, at := range []volume.Range{{Length: testSize}, {Offset: 1 << 20, Length: 64 << 10}, {Offset: 512, Length: 1 << 20}, {Offset: testSize - 4096, Length: 4096}} {
		a, err := source.host.Checksum(Key{testVolume, source.id}, at)
		check(t, err)
		b, err := target.host.Checksum(Key{testVolume, target.id}, at)
		check(t, err)
		if a != b {
			t.Fatalf("%v differs", at)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.finds != 1 {
		t.Fatalf("%d sessions for one fence", r.finds)
	}
}

func TestChecksum(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.pool(volume.PoolID{1})
	e, _ := r.dial(p, testFence)
	k := Key{testVolume, p.id}
	whole := volume.Range{Length: testSize}
	empty, err := p.host.Checksum(k, whole)
	check(t, err)
	zeroes := r.buffers.Get(4096)
	clear(zeroes.Bytes())
	e.ok(replication.Message{Kind: replication.Write, Range: volume.Range{Length: 4096}, Payload: zeroes})
	if same, err := p.host.Checksum(k, whole); err != nil || same != empty {
		t.Fatalf("zeroes and a hole differ: %v", err)
	}
	e.write(r.buffers, testSize-512, 1, 512)
	if other, err := p.host.Checksum(k, whole); err != nil || other == empty {
		t.Fatalf("a change is not seen: %v", err)
	}
	for _, at := range []volume.Range{{}, {Offset: testSize, Length: 512}, {Length: testSize + 512}, {Offset: 512, Length: 1<<64 - 512}} {
		if _, err := p.host.Checksum(k, at); !fault.Is(err, fault.Invalid) {
			t.Fatalf("%v: %v", at, err)
		}
	}
	if _, err := p.host.Checksum(Key{volume.ID{1}, p.id}, whole); !fault.Is(err, fault.NotFound) {
		t.Fatal(err)
	}
}

// Sources that are away, silent, or answer something else fail a copy and nothing else.
func TestBadSource(t *testing.T) {
	t.Parallel()
	hole := func(at volume.Range) *wire.Segments { return &wire.Segments{List: []wire.Segment{{Range: at}}} }
	for name, spoil := range map[string]func(replication.Message) replication.Message{
		"away": nil,
		"silent": func(m replication.Message) replication.Message {
			m.ID += 1000
			return m
		},
		"nothing": func(m replication.Message) replication.Message {
			m.Payload = nil
			return m
		},
		"another range": func(m replication.Message) replication.Message {
			m.Payload = hole(volume.Range{Offset: 1 << 20, Length: 1 << 20})
			return m
		},
		"too little": func(m replication.Message) replication.Message {
			m.Payload = hole(volume.Range{Length: 512})
			return m
		},
		"another kind": func(m replication.Message) replication.Message {
			m.Payload = block.NewPool().Get(1 << 20)
			return m
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			source, target := r.pool(volume.PoolID{1}), r.pool(volume.PoolID{2})
			from, _ := r.dial(source, testFence)
			to, _ := r.dial(target, testFence)
			from.write(r.buffers, 0, 5, 4096)
			order := replication.Message{Kind: replication.Copy, Range: volume.Range{Length: 1 << 20}, Source: source.id}
			if spoil == nil {
				order.Source = volume.PoolID{3}
			}
			r.mu.Lock()
			r.spoil = spoil
			r.mu.Unlock()
			if a := to.do(order); a.Status != fault.Unavailable {
				t.Fatal(a.Status)
			}
			r.mu.Lock()
			r.spoil = nil
			r.mu.Unlock()
			to.write(r.buffers, 0, 6, 512)
			if name != "silent" {
				return // the session lives, and its answers are still spoilt
			}
			order.Source = source.id
			to.ok(order) // after a silence it is another session
			to.reads(0, 5, 4096)
		})
	}
}

// A source that ends in the middle of a copy.
func TestSourceEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	source, target := r.pool(volume.PoolID{1}), r.pool(volume.PoolID{2})
	to, _ := r.dial(target, testFence)
	order := replication.Message{Kind: replication.Copy, Range: volume.Range{Length: 1 << 20}, Source: source.id}
	if a := to.do(order); a.Status != fault.Unavailable { // not fenced by this engine yet
		t.Fatal(a.Status)
	}
	from, _ := r.dial(source, testFence)
	to.ok(order)
	r.close(source)
	from.awaitEnd()
	if a := to.do(order); a.Status != fault.Unavailable {
		t.Fatal(a.Status)
	}
	r.open(source)
	check(t, source.host.Add(source.Pool, testVolume))
	r.dial(source, testFence)
	to.ok(order)
}

// A restart keeps the fence and the data, and says that writes may be lost; older engines are refused.
func TestRestart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.pool(volume.PoolID{1})
	second := volume.Fence{Epoch: 2, Engine: volume.EngineID{2}}
	e, welcome := r.dial(p, second)
	if welcome.Kind != replication.Welcome || welcome.Knowledge.Broken {
		t.Fatalf("%+v", welcome)
	}
	first := welcome.Knowledge.Incarnation
	e.write(r.buffers, 4096, 4, 4096)
	r.close(p)
	e.awaitEnd()
	if _, err := p.host.Accept(Key{testVolume, p.id}, e.link); !fault.Is(err, fault.NotFound) {
		t.Fatal(err)
	}
	if err := p.host.Add(p.Pool, testVolume); !fault.Is(err, fault.Shutdown) {
		t.Fatal(err)
	}
	r.open(p)
	check(t, p.host.Add(p.Pool, testVolume))
	check(t, p.host.Add(p.Pool, testVolume))
	old, refusal := r.dial(p, testFence)
	if refusal.Kind != replication.Refuse || refusal.Status != fault.Fenced || refusal.Fence != second {
		t.Fatalf("%+v", refusal)
	}
	old.awaitEnd()
	e, welcome = r.dial(p, second)
	k := welcome.Knowledge
	if welcome.Kind != replication.Welcome || !k.Broken || k.Incarnation == first || len(k.Doubt) == 0 {
		t.Fatalf("%+v", welcome)
	}
	e.reads(4096, 4, 4096)
}

// A newer session takes the older one's place; the older one ends.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.pool(volume.PoolID{1})
	e, _ := r.dial(p, testFence)
	for i := range uint64(5) {
		next, welcome := r.dial(p, volume.Fence{Epoch: volume.Epoch(i + 2), Engine: volume.EngineID{2}})
		if welcome.Kind != replication.Welcome {
			t.Fatalf("%+v", welcome)
		}
		e.awaitEnd()
		next.write(r.buffers, 0, byte(i), 512)
		e = next
	}
}

// Sessions that come while a replica ends, end: none is forgotten.
func TestAcceptWhileEnding(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.pool(volume.PoolID{1})
	k := Key{testVolume, p.id}
	for range 30 {
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				e := &engine{t: t, pool: p.id, in: make(chan replication.Message, 1000), gone: make(chan struct{})}
				l, err := r.localTo(p, e)
				if err != nil {
					return
				}
				e.link = l
				e.awaitEnd()
			})
		}
		group.Go(func() { _ = p.host.Remove(k, nil) })
		group.Wait()
		check(t, p.host.Add(p.Pool, testVolume))
		// Those that came after the replica was ended found none; the others were ended with it.
	}
}

// Adding, removing and deleting at once: a deletion is never crossed.
func TestDeleteAgainstAdd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.pool(volume.PoolID{1})
	k := Key{testVolume, p.id}
	for range 20 {
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() {
				for range 5 {
					if err := p.host.Add(p.Pool, testVolume); err != nil && !fault.Is(err, fault.NotFound) {
						t.Error(err)
					}
				}
			})
		}
		group.Go(func() {
			err := p.host.Remove(k, func() error {
				name, err := p.Pool.DeleteReplica(testVolume)
				if err != nil {
					return err
				}
				return p.Pool.Purge(name)
			})
			if err != nil {
				t.Error(err)
			}
		})
		group.Wait()
		if p.host.Has(k) || p.host.Fault(k) != nil {
			t.Fatal("it is there again")
		}
		c := configuration()
		check(t, p.Pool.CreateReplica(c, volume.ReplicaState{Volume: c.Volume, Pool: p.id, Accepted: c, History: []volume.GenerationID{{3}}}, nil))
		check(t, p.host.Add(p.Pool, testVolume))
	}
}

// A damaged replica is refused with the reason, and others go on.
func TestDamaged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.pool(volume.PoolID{1})
	other := configuration()
	other.Volume = volume.ID{8}
	check(t, p.CreateReplica(other, volume.ReplicaState{Volume: other.Volume, Pool: p.id, Accepted: other, History: []volume.GenerationID{{3}}}, nil))
	check(t, p.host.Remove(Key{testVolume, p.id}, nil))
	state := "/pool/volume-" + testVolume.String() + "/state"
	f, err := p.fs.Open(state, 0)
	check(t, err)
	check(t, f.WriteAt([]byte("garbage"), 20, true))
	check(t, f.Close())
	k := Key{testVolume, p.id}
	if err := p.host.Add(p.Pool, testVolume); !fault.Is(err, fault.Corrupt) || !fault.Is(p.host.Fault(k), fault.Corrupt) {
		t.Fatal(err)
	}
	_, err = p.host.Accept(k, nil)
	if !fault.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), testVolume.String()) || !strings.Contains(err.Error(), "state") {
		t.Fatal(err)
	}
	check(t, p.host.Add(p.Pool, other.Volume))
	if keys := p.host.Running(); len(keys) != 1 || keys[0].Volume != other.Volume {
		t.Fatal(keys)
	}
	p.host.RemovePool(p.id)
	if p.host.Fault(k) != nil || len(p.host.Running()) != 0 {
		t.Fatal("something is left")
	}
}

// A replica whose metadata cannot be written ends its sessions, tells it, and comes back when the disk does.
func TestMetadataFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.pool(volume.PoolID{1})
	var broken atomic.Bool
	p.fs.Hook(func(c memory.Call) memory.Fault {
		if broken.Load() && strings.Contains(c.Path, "/state") && c.Op != memory.Read {
			return memory.Fault{Err: syscall.EIO}
		}
		return memory.Fault{}
	})
	broken.Store(true)
	k := Key{testVolume, p.id}
	runs := func() *runner {
		p.host.mu.Lock()
		defer p.host.mu.Unlock()
		return p.host.runners[k]
	}
	was := runs()
	e := r.session(p)
	c := configuration()
	e.send(replication.Message{Kind: replication.Hello, Fence: testFence, Configuration: &c})
	e.awaitEnd()
	await(t, "it is told", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.events) == 1 && r.events[0].Reason == "metadata-failed" && r.events[0].Volume == testVolume
	})
	broken.Store(false)
	await(t, "it runs again", func() bool { now := runs(); return now != nil && now != was })
	if err := p.host.Fault(k); err != nil {
		t.Fatal(err)
	}
	if _, welcome := r.dial(p, testFence); welcome.Kind != replication.Welcome {
		t.Fatalf("%+v", welcome)
	}
}

// A failed flush is an error, and the replica says so to the next engine.
func TestSyncFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.pool(volume.PoolID{1})
	e, _ := r.dial(p, testFence)
	e.write(r.buffers, 0, 1, 4096)
	var broken atomic.Bool
	broken.Store(true)
	p.fs.Hook(func(c memory.Call) memory.Fault {
		if broken.Load() && strings.HasSuffix(c.Path, "/data") && c.Op == memory.Sync {
			return memory.Fault{Err: syscall.EIO}
		}
		return memory.Fault{}
	})
	if a := e.do(replication.Message{Kind: replication.Sync}); a.Status != fault.IO {
		t.Fatal(a.Status)
	}
	broken.Store(false)
	_, welcome := r.dial(p, volume.Fence{Epoch: 2, Engine: volume.EngineID{2}})
	if welcome.Kind != replication.Welcome || !welcome.Knowledge.Broken {
		t.Fatalf("%+v", welcome)
	}
}

// Sessions come and go for a long time without leaving anything behind.
func TestSessionsLeaveNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.pool(volume.PoolID{1})
	for i := range 200 {
		e, _ := r.dial(p, volume.Fence{Epoch: volume.Epoch(i + 1), Engine: volume.EngineID{1}})
		e.write(r.buffers, 0, 1, 512)
		e.link.Close()
		e.awaitEnd()
	}
	h := p.host
	h.mu.Lock()
	run := h.runners[Key{testVolume, p.id}]
	h.mu.Unlock()
	h.Close()
	<-run.ended
	if len(run.links) > 1 || len(run.sending) > 1 || len(run.fetchers) > 0 {
		t.Fatalf("%d links, %d queues, %d fetchers", len(run.links), len(run.sending), len(run.fetchers))
	}
	if s := run.snapshot(); s.Volume != testVolume {
		t.Fatalf("%+v", s)
	}
}

// Requests that never belong to a session: it is closed, and the replica goes on.
func TestNonsense(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.pool(volume.PoolID{1})
	for i, m := range []replication.Message{
		{Kind: replication.Write, ID: 1, Range: volume.Range{Length: 512}},
		{Kind: replication.Welcome},
		{Kind: replication.Read, ID: 1, Range: volume.Range{Offset: testSize, Length: 512}},
		{Kind: replication.Hello, Fence: testFence},
		{Kind: replication.Hello, Fence: volume.Fence{}},
		{Kind: replication.Kind(200)},
	} {
		e := r.session(p)
		e.send(m)
		if a := e.next(); a.Kind != replication.Refuse || a.Status == fault.None {
			t.Fatalf("%d: %+v", i, a)
		}
		e.awaitEnd()
	}
	e, welcome := r.dial(p, testFence)
	if welcome.Kind != replication.Welcome {
		t.Fatalf("%+v", welcome)
	}
	e.send(replication.Message{Kind: replication.Read, ID: 1, Range: volume.Range{Offset: testSize, Length: 512}})
	e.awaitEnd()
	if s, ok := p.host.State(Key{testVolume, p.id}); !ok || s.Volume != testVolume {
		t.Fatalf("%+v", s)
	}
}
