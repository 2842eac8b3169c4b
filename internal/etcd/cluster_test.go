package etcd

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
)

// cluster is three members in one process.
type cluster struct {
	t       *testing.T
	opts    []MemberOptions
	members []*Member
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, members: make([]*Member, 3)}
	addresses, dir, initial := freeAddresses(t, 6), t.TempDir(), map[string]string{}
	for i := range 3 {
		initial[fmt.Sprint("m", i)] = addresses[2*i]
	}
	for i := range 3 {
		name := fmt.Sprint("m", i)
		c.opts = append(c.opts, MemberOptions{Name: name, Dir: filepath.Join(dir, name), ClusterToken: "test",
			PeerURL: addresses[2*i], ClientURL: addresses[2*i+1], InitialCluster: initial,
			Heartbeat: 50 * time.Millisecond, ElectionTimeout: 500 * time.Millisecond, UnsafeNoFsync: true})
	}
	return c
}

func (c *cluster) start(i int) *Member {
	c.t.Helper()
	c.members[i] = startMember(c.t, c.opts[i])
	return c.members[i]
}

func runCluster(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t)
	for i := range c.members {
		c.start(i)
	}
	for _, m := range c.members {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if err := m.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	return c
}

// endpoints are the client addresses, beginning with member first.
func (c *cluster) endpoints(first int) []string {
	var e []string
	for i := range c.opts {
		e = append(e, c.opts[(first+i)%len(c.opts)].ClientURL)
	}
	return e
}

func (c *cluster) leader() int {
	c.t.Helper()
	found := -1
	eventually(c.t, "a leader is known", func() bool {
		for i, m := range c.members {
			if m.Leader().Self {
				found = i
			}
		}
		return found >= 0
	})
	return found
}

// kill ends a member as a crash would: no leadership is given away, no client is told.
func (c *cluster) kill(i int) {
	c.t.Helper()
	c.members[i].server.Server.HardStop()
	closeMember(c.t, c.members[i])
}

func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in 20 s: %s", what)
		}
	}
}

func TestMembersStartOneByOne(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	first := c.start(0)
	select {
	case <-first.Ready():
		t.Fatal("one of three is ready")
	default:
	}
	if s := first.Status(); s.Ready || s.Leader.Known {
		t.Fatalf("one of three says %+v", s)
	}
	client := dial(t, Options{Endpoints: c.endpoints(0), CallTimeout: time.Second})
	begin := time.Now()
	_, err := client.Get(t.Context(), "a")
	if !fault.Is(err, fault.Unavailable) || time.Since(begin) > 2*time.Second {
		t.Fatalf("after %v: %v", time.Since(begin), err)
	}
	for _, e := range c.endpoints(0) {
		if !strings.Contains(err.Error(), e) {
			t.Errorf("the error does not name %s: %v", e, err)
		}
	}
	// A member that was never ready can be closed, and started again.
	begin = time.Now()
	closeMember(t, first)
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("closing a member that was never ready took %v", took)
	}
	first = c.start(0)
	c.start(1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := first.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "writes pass with two of three", func() bool {
		return client.Put(t.Context(), "a", nil).Verdict == kv.Applied
	})
	// The third lost its directory after it had joined: the others know it, so it must not vote anew.
	if err := c.start(2).WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	closeMember(t, c.members[2])
	lost := c.opts[2]
	lost.Dir += "-new"
	if _, err := Start(ctx, lost); !fault.Is(err, fault.Stale) {
		t.Fatalf("a member without its data: %v", err)
	}
}

// counter is one process that counts a record up through reads and swaps, and knows what it was told.
type counter struct {
	key          string
	acknowledged int           // swaps that were Applied
	resolved     int           // swaps that were Unknown and turned out to have happened
	unknown      int           // swaps that were Unknown
	value        int           // the last value known for certain
	revision     int64         // where it stands
	longest      time.Duration // the longest time without a success
	failure      error
	lastSuccess  time.Time
	certain      bool // value and revision are known
	ghost        bool // a swap of this value to the next is under way: it may land until another one does
}

// step makes one move.
func (c *counter) step(ctx context.Context, store kv.Store) {
	if !c.certain {
		c.reread(ctx, store)
		return
	}
	out := store.CompareAndSwap(ctx, c.key, c.revision, []byte(strconv.Itoa(c.value+1)), 0)
	switch out.Verdict {
	case kv.Applied:
		c.value, c.revision = c.value+1, out.Revision
		c.acknowledged++
		c.ghost = false
		now := time.Now()
		c.longest = max(c.longest, now.Sub(c.lastSuccess))
		c.lastSuccess = now
	case kv.Unknown:
		c.unknown++
		c.certain, c.ghost = false, true
	case kv.Conflict: // nobody else writes this key
		if c.ghost {
			c.certain = false
			return
		}
		c.failure = fmt.Errorf("a conflict at value %d, revision %d: %+v", c.value, c.revision, out.Current)
	}
}

// reread finds out whether a swap happened.
func (c *counter) reread(ctx context.Context, store kv.Store) {
	r, err := store.Get(ctx, c.key)
	if err != nil {
		return
	}
	got, _ := strconv.Atoi(string(r.Value))
	switch {
	case got == c.value:
	case got == c.value+1 && c.ghost:
		c.resolved++
		c.ghost = false
	default:
		c.failure = fmt.Errorf("read %d after %d was acknowledged", got, c.value)
	}
	c.value, c.revision, c.certain = got, r.ModRevision, true
}

func TestLeaderKilledUnderLoad(t *testing.T) {
	t.Parallel()
	c := runCluster(t)
	setup := dial(t, Options{Endpoints: c.endpoints(0)})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var group sync.WaitGroup
	counters, done := make([]*counter, 3), make([]atomic.Int64, 3)
	for i := range counters {
		key := fmt.Sprint("counter", i)
		out := setup.Put(ctx, key, []byte("0"))
		if out.Err != nil {
			t.Fatal(out.Err)
		}
		n := &counter{key: key, revision: out.Revision, certain: true, lastSuccess: time.Now()}
		counters[i] = n
		store := dial(t, Options{Endpoints: c.endpoints(i)})
		group.Go(func() {
			for ctx.Err() == nil && n.failure == nil {
				n.step(t.Context(), store)
				done[i].Store(int64(n.acknowledged))
			}
		})
	}
	progress := func(n int64) {
		t.Helper()
		for i := range done {
			target := done[i].Load() + n
			eventually(t, counters[i].key+" goes on", func() bool { return done[i].Load() >= target })
		}
	}
	progress(50)
	killed := c.leader()
	c.kill(killed)
	progress(50)
	c.start(killed)
	progress(50)
	stop()
	group.Wait()
	for _, n := range counters {
		r, err := setup.Get(t.Context(), n.key)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := strconv.Atoi(string(r.Value))
		want := n.acknowledged + n.resolved
		if n.failure != nil || got != want && !(n.ghost && got == want+1) {
			t.Errorf("%s stands at %d, want %d: %v", n.key, got, want, n.failure)
		}
		if n.longest > 4*time.Second {
			t.Errorf("%s stood still for %v", n.key, n.longest)
		}
		t.Logf("%s: %d acknowledged, %d unknown (%d had happened), longest pause %v",
			n.key, n.acknowledged, n.unknown, n.resolved, n.longest.Round(time.Millisecond))
	}
}

func TestMajorityLostAndBack(t *testing.T) {
	t.Parallel()
	c := runCluster(t)
	left := (c.leader() + 1) % 3 // a follower stays
	gone := []int{(left + 1) % 3, (left + 2) % 3}
	client := dial(t, Options{Endpoints: c.endpoints(left), CallTimeout: time.Second})
	minority := dial(t, Options{Endpoints: c.endpoints(left)[:1], CallTimeout: time.Second})
	if out := client.Put(t.Context(), "a", []byte("1")); out.Err != nil {
		t.Fatal(out.Err)
	}
	events := client.Watch(t.Context(), "", 0)
	<-events
	for _, i := range gone {
		c.kill(i)
	}
	for name, store := range map[string]kv.Store{"all": client, "minority": minority} {
		begin := time.Now()
		_, err := store.Get(t.Context(), "a")
		if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), c.opts[left].ClientURL) {
			t.Fatalf("%s: get: %v", name, err)
		}
		out := store.Put(t.Context(), "a", []byte("2"))
		if out.Verdict == kv.Applied || out.Verdict == kv.Conflict || out.Err == nil {
			t.Fatalf("%s: put: %v, %v", name, out.Verdict, out.Err)
		}
		if took := time.Since(begin); took > 3*time.Second {
			t.Fatalf("%s: two calls of 1 s took %v", name, took)
		}
		t.Logf("%s: get: %v; put: %v, %v", name, err, out.Verdict, out.Err)
	}
	eventually(t, "a write is certainly refused", func() bool {
		out := client.Put(t.Context(), "a", []byte("3"))
		return out.Verdict == kv.NotApplied && fault.Is(out.Err, fault.Unavailable)
	})
	c.start(gone[0])
	eventually(t, "writes pass again", func() bool { return client.Put(t.Context(), "b", nil).Verdict == kv.Applied })
	if r, err := minority.Get(t.Context(), "a"); err != nil || len(r.Value) == 0 {
		t.Fatalf("the acknowledged record: %+v, %v", r, err)
	}
	for e := range events {
		if e.Items[len(e.Items)-1].Key == "b" {
			break // the watch went through it all
		}
	}
}

// TestFailedMemberStepsDown stops a leader as etcd stops itself when its disk fails.
func TestFailedMemberStepsDown(t *testing.T) {
	t.Parallel()
	c := runCluster(t)
	i := c.leader()
	client := dial(t, Options{Endpoints: c.endpoints(i)})
	if out := client.Put(t.Context(), "a", nil); out.Err != nil {
		t.Fatal(out.Err)
	}
	go c.members[i].zapping.logger(c.members[i].fail).Fatal("failed to save", zap.Error(context.DeadlineExceeded))
	<-c.members[i].Failed()
	if err := c.members[i].Err(); !fault.Is(err, fault.IO) || !strings.Contains(err.Error(), "failed to save: context deadline exceeded") {
		t.Fatal(err)
	}
	eventually(t, "writes pass without the failed member", func() bool {
		return client.Put(t.Context(), "a", nil).Verdict == kv.Applied
	})
	if c.members[i].Leader().Self {
		t.Fatal("the failed member leads")
	}
}
