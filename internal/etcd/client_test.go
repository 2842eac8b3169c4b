package etcd

import (
	"context"
	"fmt"
	"testing"
	"time"

	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
)

// TestUnknownOutcome loses the answer to a write that happened, in three ways.
func TestUnknownOutcome(t *testing.T) {
	t.Parallel()
	m := startReady(t, quick(t, "one"))
	p := newProxy(t, m.Endpoint())
	direct := dial(t, Options{Endpoints: []string{m.Endpoint()}})
	for name, end := range map[string]func(cancel context.CancelFunc){
		"cancelled":         func(cancel context.CancelFunc) { cancel() },
		"deadline":          func(context.CancelFunc) {},
		"connection closed": func(context.CancelFunc) { p.cut() },
	} {
		t.Run(name, func(t *testing.T) {
			p.hold(false, false)
			// The prober would end the silence first; here the other ways are of interest.
			client := dial(t, Options{Endpoints: []string{p.address()}, CallTimeout: time.Second, ProbeInterval: time.Minute})
			key := "unknown/" + name
			before := client.CompareAndSwap(t.Context(), key, 0, []byte("1"), 0)
			if before.Err != nil {
				t.Fatal(before.Err)
			}
			p.hold(false, true)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			result := make(chan kv.Outcome, 1)
			go func() { result <- client.CompareAndSwap(ctx, key, before.Revision, []byte("2"), 0) }()
			var happened kv.KV
			eventually(t, "the write happens", func() bool {
				happened, _ = direct.Get(t.Context(), key)
				return string(happened.Value) == "2"
			})
			end(cancel)
			out := <-result
			if out.Verdict != kv.Unknown || !fault.Is(out.Err, fault.Aborted) {
				t.Fatalf("%v: %v", out.Verdict, out.Err)
			}
			t.Log(out.Err)
			// It was not sent twice.
			if r, _ := direct.Get(t.Context(), key); r.ModRevision != happened.ModRevision {
				t.Fatalf("it happened at %d and again at %d", happened.ModRevision, r.ModRevision)
			}
		})
	}
}

// TestNeverSent has nobody to send to: the outcome is certain.
func TestNeverSent(t *testing.T) {
	t.Parallel()
	nobody := freeAddresses(t, 1)[0]
	client := dial(t, Options{Endpoints: []string{nobody}, CallTimeout: 300 * time.Millisecond})
	out := client.Put(t.Context(), "a", nil)
	if out.Verdict != kv.NotApplied || !fault.Is(out.Err, fault.Unavailable) {
		t.Fatalf("%v: %v", out.Verdict, out.Err)
	}
	t.Log(out.Err)
	// The same where the first takes connections and says nothing, and the next serves.
	m := startReady(t, quick(t, "one"))
	p := newProxy(t, m.Endpoint())
	p.hold(true, true)
	client = dial(t, Options{Endpoints: []string{nobody, p.address(), m.Endpoint()}})
	begin := time.Now()
	if out := client.Put(t.Context(), "a", nil); out.Err != nil {
		t.Fatal(out.Err)
	}
	t.Logf("two dead endpoints were passed in %v", time.Since(begin).Round(time.Millisecond))
	if took := time.Since(begin); took > 4*time.Second {
		t.Fatalf("two dead endpoints cost %v", took)
	}
}

// TestSilentEndpointIsLeft lets the machine of the endpoint in use vanish.
func TestSilentEndpointIsLeft(t *testing.T) {
	t.Parallel()
	m := startReady(t, quick(t, "one"))
	p := newProxy(t, m.Endpoint())
	direct := dial(t, Options{Endpoints: []string{m.Endpoint()}})
	client := dial(t, Options{Endpoints: []string{p.address(), m.Endpoint()}})
	events := client.Watch(t.Context(), "", 0)
	<-events
	session, err := client.Grant(t.Context(), 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	p.hold(true, true)
	begin := time.Now()
	if out := direct.Put(t.Context(), "a", []byte("1")); out.Err != nil {
		t.Fatal(out.Err)
	}
	out := client.Put(t.Context(), "b", []byte("1"))
	if out.Verdict != kv.Unknown {
		t.Fatalf("a write to a silent member: %v, %v", out.Verdict, out.Err)
	}
	if r, err := client.Get(t.Context(), "a"); err != nil || string(r.Value) != "1" {
		t.Fatalf("%+v, %v", r, err)
	}
	if e := <-events; e.Resync || e.Items[0].Key != "a" {
		t.Fatalf("%+v", e)
	}
	took := time.Since(begin)
	t.Logf("a write, a read and a watch left a silent endpoint in %v: %v", took.Round(time.Millisecond), out.Err)
	if took > 4*time.Second {
		t.Error("that is too long")
	}
	select {
	case <-session.Lost():
		t.Error("the lease was lost over it")
	case <-time.After(session.TTL()):
	}
}

func TestCutHolderKnowsBeforeOthers(t *testing.T) {
	t.Parallel()
	m := startReady(t, quick(t, "one"))
	p := newProxy(t, m.Endpoint())
	direct := dial(t, Options{Endpoints: []string{m.Endpoint()}})
	client := dial(t, Options{Endpoints: []string{p.address()}})
	session, err := client.Grant(t.Context(), 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if out := client.CompareAndSwap(t.Context(), "holder", 0, nil, session.Lease()); out.Err != nil {
		t.Fatal(out.Err)
	}
	p.hold(true, true)
	eventually(t, "the key goes", func() bool {
		_, err := direct.Get(t.Context(), "holder")
		return fault.Is(err, fault.NotFound)
	})
	select {
	case <-session.Lost():
	default:
		t.Fatal("the key went while the holder believed in its lease")
	}
	p.hold(false, false)
	again, err := client.Grant(t.Context(), 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestWatchAcrossRestartAndCompaction(t *testing.T) {
	t.Parallel()
	opts := quick(t, "one")
	m := startReady(t, opts)
	p := newProxy(t, m.Endpoint())
	client := dial(t, Options{Endpoints: []string{p.address()}})
	direct := dial(t, Options{Endpoints: []string{m.Endpoint()}})
	put := func(value string) int64 {
		t.Helper()
		out := direct.Put(t.Context(), "w/a", []byte(value))
		if out.Err != nil {
			t.Fatal(out.Err)
		}
		return out.Revision
	}
	put("1")
	events := client.Watch(t.Context(), "w/", 0)
	want := func(resync bool, value string) {
		t.Helper()
		e := <-events
		if e.Resync != resync || len(e.Items) != 1 || string(e.Items[0].Value) != value {
			t.Fatalf("%+v, want resync %v and %s", e, resync, value)
		}
	}
	want(true, "1")

	closeMember(t, m)
	startReady(t, opts)
	put("2")
	want(false, "2")

	// While the watch is cut off, what it misses is compacted.
	p.hold(true, true)
	p.cut()
	put("3")
	rev := put("4")
	if err := direct.Compact(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	p.hold(false, false)
	want(true, "4")
	put("5")
	want(false, "5")
}

func TestForeignClusterIsRefused(t *testing.T) {
	t.Parallel()
	ours := startReady(t, quick(t, "ours"))
	theirs := startReady(t, quick(t, "theirs"))
	id, err := dial(t, Options{Endpoints: []string{ours.Endpoint()}}).ClusterID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client := dial(t, Options{Endpoints: []string{theirs.Endpoint()}, ClusterID: id, CallTimeout: 500 * time.Millisecond})
	out := client.Put(t.Context(), "a", nil)
	if out.Verdict != kv.NotApplied || !fault.Is(out.Err, fault.Foreign) {
		t.Fatalf("%v: %v", out.Verdict, out.Err)
	}
	t.Log(out.Err)
	if _, err := dial(t, Options{Endpoints: []string{theirs.Endpoint()}}).Get(t.Context(), "a"); !fault.Is(err, fault.NotFound) {
		t.Fatalf("it was written there: %v", err)
	}
	if _, err := Dial(Options{}); !fault.Is(err, fault.Invalid) {
		t.Fatal(err)
	}
	if _, err := Dial(Options{Endpoints: []string{"h:1"}, ClusterID: fmt.Sprint("x", id)}); !fault.Is(err, fault.Invalid) {
		t.Fatal(err)
	}
}
