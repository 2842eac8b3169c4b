package etcdtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
)

// Subject is the implementation that Conformance checks.
type Subject struct {
	Open    func(t *testing.T) kv.Store // another process that uses the same store
	Compact func(t *testing.T, revision int64)
	// Pass lets about d go by: at once where time is injected, by sleeping where it is not.
	Pass func(d time.Duration)
}

// Conformance is what every kv.Store does, whoever implements it.
func Conformance(t *testing.T, subject Subject) {
	for _, c := range []struct {
		name string
		run  func(*bench)
	}{
		{"ReadWhatWasWritten", readWhatWasWritten},
		{"ListIsOrderedAndBounded", listIsOrderedAndBounded},
		{"CompareAndSwap", compareAndSwap},
		{"ConcurrentSwapsLoseNothing", concurrentSwaps},
		{"TransactionsAreWhole", transactionsAreWhole},
		{"InvalidIsRefused", invalidIsRefused},
		{"CallerGivesUp", callerGivesUp},
		{"WatchFromNow", watchFromNow},
		{"WatchFromPast", watchFromPast},
		{"WatchAfterCompaction", watchAfterCompaction},
		{"WatchAheadOfStore", watchAheadOfStore},
		{"SlowWatchLosesNothing", slowWatch},
		{"LeaseClosed", leaseClosed},
		{"LeaseAbandoned", leaseAbandoned},
		{"LeaseKeptAlive", leaseKeptAlive},
		{"LeaseDetached", leaseDetached},
		{"ClosedStore", closedStore},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			b := &bench{T: t, ctx: ctx, subject: subject, prefix: "conformance/" + c.name + "/"}
			b.store = b.open()
			c.run(b)
		})
	}
}

// bench is one case: a store and a prefix that nobody else uses.
type bench struct {
	*testing.T
	ctx     context.Context
	subject Subject
	store   kv.Store
	prefix  string
}

func (b *bench) open() kv.Store {
	s := b.subject.Open(b.T)
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Errorf("close: %v", err)
		}
	})
	return s
}

func (b *bench) key(name string) string { return b.prefix + name }

// want ends the case unless out has the verdict, and the error's kind if that is not None.
func (b *bench) want(out kv.Outcome, verdict kv.Verdict, kind fault.Kind) kv.Outcome {
	b.Helper()
	if out.Verdict != verdict || fault.KindOf(out.Err) != kind {
		b.Fatalf("outcome is %v (%v: %v), want %v (%v)", out.Verdict, fault.KindOf(out.Err), out.Err, verdict, kind)
	}
	return out
}

func (b *bench) applied(out kv.Outcome) int64 {
	b.Helper()
	return b.want(out, kv.Applied, fault.None).Revision
}

func (b *bench) get(name string) kv.KV {
	b.Helper()
	r, err := b.store.Get(b.ctx, b.key(name))
	if err != nil {
		b.Fatalf("get: %v", err)
	}
	return r
}

func (b *bench) absent(name string) bool {
	b.Helper()
	_, err := b.store.Get(b.ctx, b.key(name))
	if err != nil && !fault.Is(err, fault.NotFound) {
		b.Fatalf("get: %v", err)
	}
	return err != nil
}

// eventually lets time pass until it is so.
func (b *bench) eventually(what string, so func() bool) {
	b.Helper()
	for end := time.Now().Add(15 * time.Second); !so(); b.subject.Pass(50 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("not in 15 s: %s", what)
		}
	}
}

func (b *bench) next(events <-chan kv.Event) kv.Event {
	b.Helper()
	select {
	case e, ok := <-events:
		if !ok {
			b.Fatal("the watch ended")
		}
		return e
	case <-time.After(15 * time.Second):
		b.Fatal("no event in 15 s")
	}
	return kv.Event{}
}

// describe writes an event without revisions: "resync a=1 b=2", "a=3 -b".
func (b *bench) describe(e kv.Event) string {
	var parts []string
	if e.Resync {
		parts = append(parts, "resync")
	}
	for _, item := range e.Items {
		name := strings.TrimPrefix(item.Key, b.prefix)
		if item.Deleted {
			parts = append(parts, "-"+name)
		} else {
			parts = append(parts, name+"="+string(item.Value))
		}
		if !e.Resync && item.ModRevision != e.Revision {
			b.Errorf("an event of revision %d has an item of revision %d", e.Revision, item.ModRevision)
		}
	}
	return strings.Join(parts, " ")
}

func (b *bench) wantEvent(events <-chan kv.Event, want string) kv.Event {
	b.Helper()
	e := b.next(events)
	if got := b.describe(e); got != want {
		b.Fatalf("event is %q, want %q", got, want)
	}
	return e
}

func readWhatWasWritten(b *bench) {
	if !b.absent("a") {
		b.Fatal("there before it was written")
	}
	first := b.applied(b.store.Put(b.ctx, b.key("a"), []byte("1")))
	r := b.get("a")
	if string(r.Value) != "1" || r.CreateRevision != first || r.ModRevision != first || r.Lease != 0 {
		b.Fatalf("read %+v after revision %d", r, first)
	}
	second := b.applied(b.store.Put(b.ctx, b.key("a"), nil))
	r = b.get("a")
	if len(r.Value) != 0 || r.CreateRevision != first || r.ModRevision != second || second <= first {
		b.Fatalf("read %+v after revisions %d, %d", r, first, second)
	}
	if r, err := b.open().Get(b.ctx, b.key("a")); err != nil || r.ModRevision != second {
		b.Fatalf("another client reads %+v, %v", r, err)
	}
	deleted := b.applied(b.store.Delete(b.ctx, b.key("a")))
	if !b.absent("a") || deleted <= second {
		b.Fatalf("deleted at %d, or still there", deleted)
	}
	if again := b.applied(b.store.Delete(b.ctx, b.key("a"))); again != deleted {
		b.Fatalf("deleting nothing went from revision %d to %d", deleted, again)
	}
	third := b.applied(b.store.Put(b.ctx, b.key("a"), []byte("3")))
	if r := b.get("a"); r.CreateRevision != third {
		b.Fatalf("made anew at %d, but created at %d", third, r.CreateRevision)
	}
	if now, err := b.store.Revision(b.ctx); err != nil || now < third {
		b.Fatalf("revision is %d, %v after %d", now, err, third)
	}
	id, err := b.store.ClusterID(b.ctx)
	other, err2 := b.open().ClusterID(b.ctx)
	if err != nil || err2 != nil || len(id) != 16 || other != id {
		b.Fatalf("cluster ids %q, %q (%v, %v)", id, other, err, err2)
	}
}

func listIsOrderedAndBounded(b *bench) {
	for _, name := range []string{"d/2", "d/10", "d/1", "c/1", "d", "e/1", "d/\u00ff"} {
		b.applied(b.store.Put(b.ctx, b.key(name), []byte(name)))
	}
	list, err := b.store.List(b.ctx, b.key("d/"))
	if err != nil {
		b.Fatal(err)
	}
	var names []string
	for _, r := range list.Items {
		names = append(names, strings.TrimPrefix(r.Key, b.prefix))
	}
	if got := strings.Join(names, " "); got != "d/1 d/10 d/2 d/\u00ff" {
		b.Fatalf("listed %s", got)
	}
	if now, _ := b.store.Revision(b.ctx); list.Revision != now {
		b.Fatalf("listed at %d, store at %d", list.Revision, now)
	}
	all, err := b.store.List(b.ctx, "")
	if err != nil || len(all.Items) < 7 {
		b.Fatalf("everything is %d records, %v", len(all.Items), err)
	}
	if none, err := b.store.List(b.ctx, b.key("nothing")); err != nil || len(none.Items) != 0 {
		b.Fatalf("nothing is %v, %v", none, err)
	}
}

func compareAndSwap(b *bench) {
	key := b.key("a")
	out := b.want(b.store.CompareAndSwap(b.ctx, key, 99, []byte("x"), 0), kv.Conflict, fault.NotFound)
	if len(out.Current) != 0 || out.Revision == 0 {
		b.Fatalf("a conflict with nothing shows %+v", out)
	}
	first := b.applied(b.store.CompareAndSwap(b.ctx, key, 0, []byte("1"), 0))
	out = b.want(b.store.CompareAndSwap(b.ctx, key, 0, []byte("x"), 0), kv.Conflict, fault.Exists)
	if len(out.Current) != 1 || string(out.Current[0].Value) != "1" || out.Current[0].ModRevision != first {
		b.Fatalf("the conflict shows %+v", out)
	}
	second := b.applied(b.store.CompareAndSwap(b.ctx, key, first, []byte("2"), 0))
	out = b.want(b.store.CompareAndSwap(b.ctx, key, first, []byte("x"), 0), kv.Conflict, fault.Aborted)
	if len(out.Current) != 1 || out.Current[0].Key != key || out.Current[0].ModRevision != second || out.Revision < second {
		b.Fatalf("the conflict shows %+v", out)
	}
	if r := b.get("a"); string(r.Value) != "2" || r.CreateRevision != first {
		b.Fatalf("read %+v", r)
	}
}

// concurrentSwaps counts to a number in several processes, each through a read and a swap.
func concurrentSwaps(b *bench) {
	const processes, each = 4, 10
	key := b.key("counter")
	b.applied(b.store.Put(b.ctx, key, []byte{0}))
	var group sync.WaitGroup
	for range processes {
		store := b.open()
		group.Go(func() {
			for done := 0; done < each; {
				r, err := store.Get(b.ctx, key)
				if err != nil {
					b.Error(err)
					return
				}
				switch out := store.CompareAndSwap(b.ctx, key, r.ModRevision, []byte{r.Value[0] + 1}, 0); out.Verdict {
				case kv.Applied:
					done++
				case kv.Conflict:
				default:
					b.Errorf("%v: %v", out.Verdict, out.Err)
					return
				}
			}
		})
	}
	group.Wait()
	if r := b.get("counter"); r.Value[0] != processes*each {
		b.Fatalf("counted to %d, want %d", r.Value[0], processes*each)
	}
}

func transactionsAreWhole(b *bench) {
	a, c, d := b.key("a"), b.key("c"), b.key("d")
	rev := b.applied(b.store.Txn(b.ctx, []kv.Condition{{Key: a}, {Key: c}},
		[]kv.Change{{Key: a, Value: []byte("1")}, {Key: c, Value: []byte("2")}, {Key: d, Remove: true}}))
	if ra, rc := b.get("a"), b.get("c"); ra.ModRevision != rev || rc.ModRevision != rev {
		b.Fatalf("one transaction at %d wrote at %d and %d", rev, ra.ModRevision, rc.ModRevision)
	}
	// The second condition is false: nothing happens, and both records are shown.
	out := b.want(b.store.Txn(b.ctx, []kv.Condition{{Key: a, ModRevision: rev}, {Key: c, ModRevision: rev + 100}, {Key: d}},
		[]kv.Change{{Key: a, Value: []byte("x")}, {Key: d, Value: []byte("x")}}), kv.Conflict, fault.Aborted)
	if len(out.Current) != 2 || out.Current[0].Key != a || out.Current[1].Key != c {
		b.Fatalf("the conflict shows %+v", out.Current)
	}
	if string(b.get("a").Value) != "1" || !b.absent("d") {
		b.Fatal("a transaction with a false condition left a trace")
	}
	// Conditions alone are a check and change nothing.
	if checked := b.applied(b.store.Txn(b.ctx, []kv.Condition{{Key: a, ModRevision: rev}}, nil)); checked != rev {
		b.Fatalf("a check went from revision %d to %d", rev, checked)
	}
	moved := b.applied(b.store.Txn(b.ctx, []kv.Condition{{Key: a, ModRevision: rev}},
		[]kv.Change{{Key: a, Remove: true}, {Key: d, Value: []byte("1")}}))
	if !b.absent("a") || b.get("d").ModRevision != moved {
		b.Fatal("the move is not whole")
	}
	out = b.want(b.store.Txn(b.ctx, nil, []kv.Change{{Key: a, Value: nil}, {Key: c, Value: nil, Lease: 12345}}), kv.NotApplied, fault.NotFound)
	if !b.absent("a") {
		b.Fatalf("a transaction with an unknown lease left a trace (%v)", out.Err)
	}
	var many []kv.Change
	for i := range kv.MaxOperations {
		many = append(many, kv.Change{Key: fmt.Sprintf("%s%03d", b.key("many/"), i)})
	}
	b.applied(b.store.Txn(b.ctx, nil, many))
}

func invalidIsRefused(b *bench) {
	bad := func(out kv.Outcome) {
		b.Helper()
		b.want(out, kv.NotApplied, fault.Invalid)
	}
	bad(b.store.Put(b.ctx, "", nil))
	bad(b.store.Put(b.ctx, "/absolute", nil))
	bad(b.store.Put(b.ctx, "control\x00", nil))
	bad(b.store.Put(b.ctx, "not\xffutf8", nil))
	bad(b.store.Put(b.ctx, strings.Repeat("k", kv.MaxKeyBytes+1), nil))
	bad(b.store.Put(b.ctx, b.key("big"), make([]byte, kv.MaxWriteBytes+1)))
	bad(b.store.Txn(b.ctx, nil, nil))
	bad(b.store.Txn(b.ctx, nil, []kv.Change{{Key: b.key("a")}, {Key: b.key("a"), Remove: true}}))
	bad(b.store.Txn(b.ctx, []kv.Condition{{Key: b.key("a")}, {Key: b.key("a"), ModRevision: 1}}, nil))
	bad(b.store.CompareAndSwap(b.ctx, b.key("a"), -1, nil, 0))
	b.want(b.store.CompareAndSwap(b.ctx, b.key("a"), 0, nil, 12345), kv.NotApplied, fault.NotFound)
	if _, err := b.store.Get(b.ctx, ""); !fault.Is(err, fault.Invalid) {
		b.Fatalf("get without a key: %v", err)
	}
	if _, err := b.store.Grant(b.ctx, 0); !fault.Is(err, fault.Invalid) {
		b.Fatalf("a lease without time: %v", err)
	}
	largest := bytes.Repeat([]byte{1}, kv.MaxWriteBytes-len(b.key("large")))
	b.applied(b.store.Put(b.ctx, b.key("large"), largest))
	if !bytes.Equal(b.get("large").Value, largest) {
		b.Fatal("the largest record came back changed")
	}
}

func callerGivesUp(b *bench) {
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	b.want(b.store.Put(ctx, b.key("a"), nil), kv.NotApplied, fault.Aborted)
	if _, err := b.store.Get(ctx, b.key("a")); !fault.Is(err, fault.Aborted) || !errors.Is(err, context.Canceled) {
		b.Fatalf("get: %v", err)
	}
	ctx, cancel = context.WithDeadline(b.ctx, time.Now().Add(-time.Second))
	defer cancel()
	b.want(b.store.Put(ctx, b.key("a"), nil), kv.NotApplied, fault.Unavailable)
	if !b.absent("a") {
		b.Fatal("a write that was given up before it began happened")
	}
}

func closedStore(b *bench) {
	store := b.open()
	events := store.Watch(b.ctx, b.prefix, 0)
	session, err := store.Grant(b.ctx, 5*time.Second)
	if err != nil {
		b.Fatal(err)
	}
	b.wantEvent(events, "resync")
	if err := store.Close(); err != nil {
		b.Fatal(err)
	}
	if _, open := <-events; open {
		b.Fatal("the watch goes on")
	}
	<-session.Lost()
	b.want(store.Put(b.ctx, b.key("a"), nil), kv.NotApplied, fault.Shutdown)
	if _, err := store.List(b.ctx, b.prefix); !fault.Is(err, fault.Shutdown) {
		b.Fatalf("list: %v", err)
	}
	if _, err := store.Grant(b.ctx, time.Second); !fault.Is(err, fault.Shutdown) {
		b.Fatalf("grant: %v", err)
	}
	if _, open := <-store.Watch(b.ctx, b.prefix, 0); open {
		b.Fatal("a watch of a closed store delivers")
	}
}
