package etcdtest

import (
	"testing"
	"time"

	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
)

func TestMemoryConforms(t *testing.T) {
	m := New()
	Conformance(t, Subject{
		Open:    func(*testing.T) kv.Store { return m.Client() },
		Compact: func(_ *testing.T, revision int64) { m.Compact(revision) },
		Pass:    m.Advance,
	})
}

func TestFaults(t *testing.T) {
	ctx := t.Context()
	m := New()
	a, b := m.Client(), m.Client()
	check := func(out kv.Outcome, v kv.Verdict, k fault.Kind) {
		t.Helper()
		if out.Verdict != v || fault.KindOf(out.Err) != k {
			t.Fatalf("%v %v, want %v %v", out.Verdict, out.Err, v, k)
		}
	}
	has := func(key string) bool { _, err := b.Get(ctx, key); return err == nil }

	a.FailNextWrite(LostReply)
	check(a.Put(ctx, "x", nil), kv.Unknown, fault.Aborted)
	if !has("x") {
		t.Fatal("the reply was lost, and so was the write")
	}
	a.FailNextWrite(LostRequest)
	check(a.Put(ctx, "y", nil), kv.Unknown, fault.Aborted)
	a.FailNextWrite(Unavailable)
	check(a.Put(ctx, "y", nil), kv.NotApplied, fault.Unavailable)
	if has("y") {
		t.Fatal("a lost request happened")
	}
	check(a.Put(ctx, "y", nil), kv.Applied, fault.None)

	m.SetMajority(false)
	if _, err := b.Get(ctx, "x"); !fault.Is(err, fault.Unavailable) {
		t.Fatal(err)
	}
	m.SetMajority(true)
	a.SetReachable(false)
	check(a.Put(ctx, "z", nil), kv.NotApplied, fault.Unavailable)
	check(b.Put(ctx, "z", nil), kv.Applied, fault.None)
}

func TestCutHolderLosesItsLease(t *testing.T) {
	ctx := t.Context()
	m := New()
	a, b := m.Client(), m.Client()
	s, err := a.Grant(ctx, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	a.CompareAndSwap(ctx, "k", 0, nil, s.Lease())
	events := a.Watch(ctx, "k", 0)
	<-events
	a.SetReachable(false)
	m.Advance(9 * time.Second)
	if _, err := b.Get(ctx, "k"); err != nil || lost(s) {
		t.Fatalf("gone before the TTL: %v", err)
	}
	m.Advance(time.Second)
	if _, err := b.Get(ctx, "k"); !fault.Is(err, fault.NotFound) || !lost(s) {
		t.Fatalf("there after the TTL: %v", err)
	}
	select {
	case e := <-events:
		t.Fatalf("a watch of a cut process delivers %+v", e)
	default:
	}
	a.SetReachable(true)
	if e := <-events; len(e.Items) != 1 || !e.Items[0].Deleted {
		t.Fatalf("after the cut: %+v", e)
	}
}

func TestRevokedBehindTheHolder(t *testing.T) {
	m := New()
	s, err := m.Client().Grant(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	m.Revoke(s.Lease())
	<-s.Lost()
}
