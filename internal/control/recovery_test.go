package control

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"samovar/internal/fault"
	"samovar/internal/replication/engine"
	"samovar/internal/resource"
	"samovar/internal/volume"
)

// degraded makes a volume on a and b that lacks its copy on b, which is killed, and writes to it on a.
func degraded(t *testing.T, c *cluster, name string) {
	t.Helper()
	a, b := c.nodes["a"], c.nodes["b"]
	c.volume(a, name, testSize, "pa", "pb")
	d := a.open(name)
	write(t, d, 0, 1, 1<<20)
	b.lose()
	write(t, d, 1<<20, 2, 1<<20) // waits until b is out
	flush(t, d)
	check(t, d.Close())
	if v := a.state(name, "detached"); v.Redundant {
		t.Fatalf("%+v", v)
	}
}

// A detached volume that lacks a copy gets it by itself, and is detached again.
func TestRecoversDetached(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a", "b")
	degraded(t, c, "tea")
	a := c.nodes["a"]
	c.start("b")
	c.awaitOnline("b")
	await(t, "tea is redundant and detached", func() bool {
		v, err := a.Volume(t.Context(), "tea")
		return err == nil && v.Redundant && v.State == "detached"
	})
	b := c.nodes["b"]
	await(t, "the events are there", func() bool {
		r := a.reasons("volume tea")
		return slices.Contains(r, "replica-left") && slices.Contains(r, "replica-joined")
	})
	a.lose()
	d := b.open("tea")
	reads(t, d, 0, 1, 1<<20)
	reads(t, d, 1<<20, 2, 1<<20)
	check(t, d.Close())
}

// A lost holder's volume, detached for its clients, is made consistent by another node after a while.
func TestRecoversLost(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b", "d")
	c.pools("a", "b")
	c.volume(c.nodes["a"], "tea", testSize, "pa", "pb")
	d := c.nodes["d"].open("tea")
	write(t, d, 0, 4, 4096)
	c.nodes["d"].lose()
	a := c.nodes["a"]
	if v, err := a.Volume(t.Context(), "tea"); err != nil || v.State == "attached" {
		t.Fatalf("%+v %v", v, err)
	}
	a.state("tea", "detached")
	if e := a.record("tea").Epoch; e < 2 {
		t.Fatalf("epoch %d: nobody recovered it", e)
	}
	dev := c.nodes["b"].open("tea")
	reads(t, dev, 0, 4, 4096)
	check(t, dev.Close())
}

// Detaching a lost holder is refused with the way out; attaching elsewhere is that way.
func TestDetachLostHolder(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a", "b")
	b := c.nodes["b"]
	c.volume(b, "tea", testSize, "pa", "pb")
	_, err := b.Attach(t.Context(), "tea", resource.Attach{Node: "a"})
	check(t, err)
	c.nodes["a"].lose()
	refused(t, b.Detach(t.Context(), "tea"), fault.Unavailable, "node a", "attach it elsewhere")
	refused(t, b.DeleteVolume(t.Context(), "tea"), fault.Busy, "node a", "attach it elsewhere")
	if v := b.state("tea", "lost"); v.Holder != "a" || v.Attached {
		t.Fatalf("%+v", v)
	}
	_, err = b.Attach(within(t, 20*time.Second), "tea", resource.Attach{Node: "b"})
	check(t, err)
	check(t, b.Detach(t.Context(), "tea"))
	check(t, b.DeleteVolume(t.Context(), "tea"))
}

// holdRecovery begins a recovery on a node that does not end by itself for a while.
func holdRecovery(t *testing.T, n *node, name string) *held {
	t.Helper()
	h, err := n.hold(within(t, 20*time.Second), name, modeRecovery)
	check(t, err)
	return h
}

// A recovery gives way: to its own node by becoming what is wanted, to others by ending, and to a deletion.
func TestRecoveryGivesWay(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a", "b")
	a, b := c.nodes["a"], c.nodes["b"]
	c.volume(a, "tea", testSize, "pa", "pb")

	h := holdRecovery(t, a, "tea")
	d := a.open("tea")
	write(t, d, 0, 1, 512)
	a.leave(h)
	if v := a.state("tea", "attached"); v.Mode != modeAutomatic || v.Epoch != 1 {
		t.Fatalf("%+v", v)
	}
	// The record still says recovery; in use it is refused to others all the same.
	_, err := b.Open(t.Context(), "tea")
	refused(t, err, fault.Busy, "node a")
	refused(t, b.DeleteVolume(t.Context(), "tea"), fault.Busy, "node a")
	check(t, d.Close())
	b.state("tea", "detached")

	holdRecovery(t, a, "tea")
	d = b.open("tea")
	reads(t, d, 0, 1, 512)
	check(t, d.Close())
	<-h.gone
	b.state("tea", "detached")

	holdRecovery(t, a, "tea")
	check(t, b.DeleteVolume(t.Context(), "tea"))
	_, err = b.Volume(t.Context(), "tea")
	if err == nil {
		await(t, "tea is gone", func() bool { _, err := b.Volume(t.Context(), "tea"); return fault.Is(err, fault.NotFound) })
	}
	if dirs := a.replicaDirs("pa"); len(dirs) > 0 {
		t.Fatalf("left in the pool: %v", dirs)
	}
}

// A record that says recovery, whose holder runs nothing of it, keeps nobody out.
func TestLeftoverRecovery(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("b")
	b := c.nodes["b"]
	c.volume(b, "tea", testSize, "pb")
	leave := func() {
		cfg := b.record("tea")
		cfg.Epoch++
		cfg.Engine, cfg.Holder, cfg.Mode = volume.EngineID{1}, "a", modeRecovery
		if o, _ := (records{b.store}).Propose(t.Context(), cfg); o != engine.Applied {
			t.Fatal("not written")
		}
	}
	// a looks after what it seems to hold; it must not come first here.
	a := c.nodes["a"]
	a.mu.Lock()
	a.ending = true
	a.mu.Unlock()
	leave()
	d := b.open("tea")
	write(t, d, 0, 1, 512)
	check(t, d.Close())
	b.state("tea", "detached")
	leave()
	check(t, b.DeleteVolume(t.Context(), "tea"))
}

// While one node recovers, an attachment that is automatic on another comes through, whatever recovery does meanwhile.
func TestOpenAgainstRecovery(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a", "b")
	degraded(t, c, "tea")
	b := c.start("b")
	c.awaitOnline("b")
	for i := range 5 {
		d := b.open("tea")
		reads(t, d, 0, 1, 1<<20)
		write(t, d, 2<<20, byte(i), 512)
		check(t, d.Close())
		b.state("tea", "detached")
	}
}

// A node that was away when a volume was deleted removes its copy when it returns.
func TestDeleteWithNodeAway(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a", "b")
	a, b := c.nodes["a"], c.nodes["b"]
	c.volume(a, "tea", testSize, "pa", "pb")
	c.volume(a, "milk", testSize, "pa", "pb")
	b.lose()
	check(t, a.DeleteVolume(t.Context(), "tea"))
	refused(t, a.DeleteVolume(t.Context(), "tea"), fault.NotFound, "tea")
	if dirs := a.replicaDirs("pa"); len(dirs) != 1 {
		t.Fatalf("left in the pool: %v", dirs)
	}
	b = c.start("b")
	c.awaitPool("pb")
	await(t, "b has removed its copy", func() bool { return len(b.replicaDirs("pb")) == 1 })
	// The name is free, and means another volume now.
	c.volume(a, "tea", testSize, "pa", "pb")
	d := b.open("tea")
	write(t, d, 0, 1, 512)
	check(t, d.Close())
}

// A deletion that reaches a node but is not finished there is finished later, without being told over and over.
func TestDeleteFinishedLater(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a", "b")
	a, b := c.nodes["a"], c.nodes["b"]
	c.volume(a, "tea", testSize, "pa", "pb")
	var calls atomic.Int32
	c.peers.set(func(_, call string) error {
		if call == "delete-replica" {
			calls.Add(1)
			return fault.New(fault.Unavailable, call, "cut off")
		}
		return nil
	}, nil)
	check(t, a.DeleteVolume(t.Context(), "tea"))
	if calls.Load() != 1 {
		t.Fatalf("%d calls", calls.Load())
	}
	await(t, "b has removed its copy", func() bool { return len(b.replicaDirs("pb")) == 0 })
	await(t, "the delay is told", func() bool { return slices.Contains(a.reasons("volume tea"), "delete-delayed") })
}

// A failure that stays is told once, and tried less and less.
func TestFailureToldOnce(t *testing.T) {
	t.Parallel()
	n := New(Options{Node: "a", Logger: quiet()})
	cfg := volume.Configuration{Volume: volume.ID{1}, Name: "tea"}
	told := func() int {
		n.log.mu.Lock()
		defer n.log.mu.Unlock()
		return len(n.log.queue)
	}
	fails := fault.New(fault.Stale, "attach volume tea", "use cluster recover")
	for i := range 3 {
		if !n.beginTry(cfg.Volume) || n.beginTry(cfg.Volume) {
			t.Fatal("not one try at a time")
		}
		n.endTry(cfg, fails)
		if n.beginTry(cfg.Volume) {
			t.Fatal("tried again at once")
		}
		n.mu.Lock()
		wait := time.Until(n.tries[cfg.Volume].notUntil)
		n.tries[cfg.Volume].notUntil = time.Time{}
		n.mu.Unlock()
		if want := time.Second << i; wait > want || wait < want-time.Second/2 {
			t.Fatalf("try %d: waits %v", i, wait)
		}
	}
	if told() != 1 {
		t.Fatalf("told %d times", told())
	}
	n.beginTry(cfg.Volume)
	n.endTry(cfg, fault.New(fault.Busy, "attach volume tea", "held by node b"))
	if told() != 1 || !strings.Contains(n.log.queue[0].Text, "cluster recover") {
		t.Fatalf("%+v", n.log.queue)
	}
	n.mu.Lock()
	n.tries[cfg.Volume].notUntil = time.Time{}
	n.mu.Unlock()
	n.beginTry(cfg.Volume)
	n.endTry(cfg, nil)
	if len(n.tries) != 0 {
		t.Fatal("a success is remembered")
	}
}
