package etcdtest

import (
	"context"
	"fmt"
	"time"

	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
)

func watchFromNow(b *bench) {
	b.applied(b.store.Put(b.ctx, b.key("a"), []byte("1")))
	ctx, cancel := context.WithCancel(b.ctx)
	events := b.open().Watch(ctx, b.prefix, 0)
	e := b.wantEvent(events, "resync a=1")
	if e.Revision < e.Items[0].ModRevision {
		b.Fatalf("listed at %d what was written at %d", e.Revision, e.Items[0].ModRevision)
	}
	b.applied(b.store.Put(b.ctx, b.key("a"), []byte("2")))
	b.applied(b.store.Put(b.ctx, "elsewhere/"+b.prefix, []byte("no")))
	rev := b.applied(b.store.Txn(b.ctx, nil, []kv.Change{{Key: b.key("b"), Value: []byte("3")}, {Key: b.key("a"), Remove: true}}))
	b.wantEvent(events, "a=2")
	if e := b.wantEvent(events, "b=3 -a"); e.Revision != rev || e.Resync {
		b.Fatalf("%+v, want revision %d", e, rev)
	}
	cancel()
	if _, open := <-events; open {
		b.Fatal("the watch goes on after its context")
	}
}

func watchFromPast(b *bench) {
	b.applied(b.store.Put(b.ctx, b.key("a"), []byte("1")))
	second := b.applied(b.store.Put(b.ctx, b.key("a"), []byte("2")))
	b.applied(b.store.Put(b.ctx, b.key("a"), []byte("3")))
	events := b.store.Watch(b.ctx, b.prefix, second)
	b.wantEvent(events, "a=2")
	last := b.wantEvent(events, "a=3")
	// From the next revision on nothing is pending.
	later := b.store.Watch(b.ctx, b.prefix, last.Revision+1)
	b.applied(b.store.Delete(b.ctx, b.key("a")))
	b.wantEvent(events, "-a")
	b.wantEvent(later, "-a")
}

func watchAfterCompaction(b *bench) {
	first := b.applied(b.store.Put(b.ctx, b.key("a"), []byte("1")))
	b.applied(b.store.Put(b.ctx, b.key("b"), []byte("1")))
	b.applied(b.store.Delete(b.ctx, b.key("a")))
	last := b.applied(b.store.Put(b.ctx, b.key("b"), []byte("2")))
	b.subject.Compact(b.T, last)
	events := b.store.Watch(b.ctx, b.prefix, first)
	if e := b.wantEvent(events, "resync b=2"); e.Revision < last {
		b.Fatalf("listed at %d, before %d", e.Revision, last)
	}
	b.applied(b.store.Put(b.ctx, b.key("c"), []byte("3")))
	b.wantEvent(events, "c=3")
}

// watchAheadOfStore is a reader who saw more than the store has: the store was restored from an older copy.
func watchAheadOfStore(b *bench) {
	rev := b.applied(b.store.Put(b.ctx, b.key("a"), []byte("1")))
	events := b.store.Watch(b.ctx, b.prefix, rev+1000)
	b.wantEvent(events, "resync a=1")
	b.applied(b.store.Put(b.ctx, b.key("a"), []byte("2")))
	b.wantEvent(events, "a=2")
}

// slowWatch reads nothing until much has happened, part of which is compacted.
func slowWatch(b *bench) {
	events := b.store.Watch(b.ctx, b.prefix, 0)
	value := make([]byte, 64<<10)
	var rev int64
	for i := range 60 { // together more than all the buffers on the way
		rev = b.applied(b.store.Put(b.ctx, b.key(fmt.Sprint("k", i%7)), value))
		if i == 50 {
			b.subject.Compact(b.T, rev)
		}
	}
	state := map[string]int64{}
	for seen := int64(0); seen < rev; {
		e := b.next(events)
		if e.Revision <= seen {
			b.Fatalf("revision %d after %d", e.Revision, seen)
		}
		seen = e.Revision
		if e.Resync {
			clear(state)
		}
		for _, item := range e.Items {
			state[item.Key] = item.ModRevision
		}
	}
	list, err := b.store.List(b.ctx, b.prefix)
	if err != nil || len(list.Items) != len(state) {
		b.Fatalf("the watch gave %d keys, the store has %d (%v)", len(state), len(list.Items), err)
	}
	for _, r := range list.Items {
		if state[r.Key] != r.ModRevision {
			b.Fatalf("the watch has %s at %d, the store at %d", r.Key, state[r.Key], r.ModRevision)
		}
	}
}

func (b *bench) grant(store kv.Store, ttl time.Duration) kv.Session {
	b.Helper()
	s, err := store.Grant(b.ctx, ttl)
	if err != nil {
		b.Fatalf("grant: %v", err)
	}
	if s.TTL() < ttl || s.Lease() == 0 {
		b.Fatalf("asked for %v, got %v as lease %x", ttl, s.TTL(), s.Lease())
	}
	return s
}

func lost(s kv.Session) bool {
	select {
	case <-s.Lost():
		return true
	default:
		return false
	}
}

func leaseClosed(b *bench) {
	s := b.grant(b.store, 10*time.Second)
	b.applied(b.store.CompareAndSwap(b.ctx, b.key("a"), 0, []byte("1"), s.Lease()))
	b.applied(b.store.CompareAndSwap(b.ctx, b.key("b"), 0, []byte("1"), s.Lease()))
	if r := b.get("a"); r.Lease != s.Lease() {
		b.Fatalf("bound to %x, want %x", r.Lease, s.Lease())
	}
	events := b.store.Watch(b.ctx, b.prefix, 0)
	b.wantEvent(events, "resync a=1 b=1")
	if lost(s) {
		b.Fatal("lost while it was held")
	}
	if err := s.Close(b.ctx); err != nil {
		b.Fatal(err)
	}
	if !lost(s) || !b.absent("a") || !b.absent("b") {
		b.Fatal("the lease was revoked; its keys or the session are still there")
	}
	b.wantEvent(events, "-a -b")
	if err := s.Close(b.ctx); err != nil {
		b.Fatalf("closing again: %v", err)
	}
	b.want(b.store.CompareAndSwap(b.ctx, b.key("a"), 0, nil, s.Lease()), kv.NotApplied, fault.NotFound)
}

func leaseAbandoned(b *bench) {
	s := b.grant(b.store, time.Second)
	b.applied(b.store.CompareAndSwap(b.ctx, b.key("a"), 0, []byte("1"), s.Lease()))
	s.Abandon()
	if !lost(s) {
		b.Fatal("abandoned and not lost")
	}
	if b.absent("a") {
		b.Fatal("the key went at once")
	}
	b.eventually("the key of an abandoned lease goes", func() bool { return b.absent("a") })
}

func leaseKeptAlive(b *bench) {
	holder := b.open()
	s := b.grant(holder, time.Second)
	b.applied(b.store.CompareAndSwap(b.ctx, b.key("a"), 0, []byte("1"), s.Lease()))
	for range 25 {
		b.subject.Pass(s.TTL() / 10)
		if lost(s) || b.absent("a") {
			b.Fatal("a lease that is kept alive ended")
		}
	}
	// The holder's process goes: nobody revokes, the keys go after a TTL.
	if err := holder.Close(); err != nil {
		b.Fatal(err)
	}
	b.eventually("the key of a holder that is gone goes", func() bool { return b.absent("a") })
}

func leaseDetached(b *bench) {
	s := b.grant(b.store, 10*time.Second)
	rev := b.applied(b.store.CompareAndSwap(b.ctx, b.key("a"), 0, []byte("1"), s.Lease()))
	b.applied(b.store.CompareAndSwap(b.ctx, b.key("a"), rev, []byte("2"), 0))
	if err := s.Close(b.ctx); err != nil {
		b.Fatal(err)
	}
	if r := b.get("a"); r.Lease != 0 || string(r.Value) != "2" {
		b.Fatalf("read %+v", r)
	}
}
