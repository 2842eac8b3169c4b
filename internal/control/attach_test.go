package control

import (
	"slices"
	"sync"
	"testing"
	"time"

	"samovar/internal/block"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

const testSize = 8 << 20

func TestWriteAndFailOver(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b", "d")
	c.pools("a", "b")
	a, b := c.nodes["a"], c.nodes["b"]
	c.volume(a, "tea", testSize, "pa", "pb")

	d := a.open("tea")
	if d.Size() != testSize || d.ReadOnly() {
		t.Fatalf("opened %d bytes", d.Size())
	}
	write(t, d, 0, 7, 1<<20)
	write(t, d, 3<<20+512, 9, 4096)
	flush(t, d)
	reads(t, d, 3<<20+512, 9, 4096)
	if v := b.state("tea", "attached"); !v.Attached || !v.Redundant || v.Holder != "a" || v.Mode != modeAutomatic {
		t.Fatalf("%+v", v)
	}
	_, err := b.Open(t.Context(), "tea")
	refused(t, err, fault.Busy, "tea", "node a", "detach")
	_, err = b.Attach(t.Context(), "tea", resource.Attach{Node: "b"})
	refused(t, err, fault.Busy, "node a")
	refused(t, b.DeleteVolume(t.Context(), "tea"), fault.Busy, "tea", "node a", "detach")
	refused(t, b.Detach(t.Context(), "tea"), fault.Busy, "node a", "sessions")

	a.lose()
	d = b.open("tea")
	reads(t, d, 0, 7, 1<<20)
	reads(t, d, 3<<20+512, 9, 4096)
	write(t, d, 1<<20, 5, 1<<20)
	if v := b.state("tea", "attached"); v.Redundant || v.Holder != "b" {
		t.Fatalf("%+v", v)
	}

	c.start("a")
	c.awaitOnline("a")
	await(t, "tea is redundant again", func() bool {
		v, err := b.Volume(t.Context(), "tea")
		return err == nil && v.Redundant
	})
	check(t, d.Close())
	b.state("tea", "detached")
	d = c.nodes["a"].open("tea")
	reads(t, d, 0, 7, 1<<20)
	reads(t, d, 1<<20, 5, 1<<20)
	check(t, d.Close())
	c.nodes["a"].state("tea", "detached")
}

// A node without a copy attaches too, and read-only openings refuse writes.
func TestDisklessAndReadOnly(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b", "d")
	c.pools("a", "b")
	n := c.nodes["d"]
	c.volume(n, "tea", testSize, "pa", "pb")
	d := n.open("tea@ro")
	if !d.ReadOnly() {
		t.Fatal("not read-only")
	}
	reads(t, d, 0, 0, 512)
	_, err := request(t, d, &block.Request{Op: block.Trim, Length: 512})
	refused(t, err, fault.Permission)
	check(t, d.Close())
	n.state("tea", "detached")
	list, err := n.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Name != "tea" || list[0].Size != testSize {
		t.Fatalf("%v %v", list, err)
	}
	info, err := n.Info(t.Context(), "tea@ro")
	if err != nil || !info.ReadOnly || info.Size != testSize {
		t.Fatalf("%v %v", info, err)
	}
	_, err = n.Info(t.Context(), "coffee")
	refused(t, err, fault.NotFound, "coffee")
	_, err = n.Open(t.Context(), "coffee")
	refused(t, err, fault.NotFound, "coffee", "volume list")
	if n.record("tea").Epoch != 1 {
		t.Fatal("something attached")
	}
}

// Of two nodes that attach at once one wins; the other names it.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a", "b")
	c.volume(c.nodes["a"], "tea", testSize, "pa", "pb")
	for range 3 {
		var group sync.WaitGroup
		devices, errs := make([]block.Device, 4), make([]error, 4)
		for i, n := range []*node{c.nodes["a"], c.nodes["b"], c.nodes["a"], c.nodes["b"]} {
			group.Go(func() { devices[i], errs[i] = n.Open(within(t, 20*time.Second), "tea") })
		}
		group.Wait()
		won := 0
		for i := range 2 {
			if (errs[i] == nil) != (errs[i+2] == nil) && errs[i] == nil {
				t.Fatalf("two of one node: %v, %v", errs[i], errs[i+2])
			}
			if errs[i] == nil || errs[i+2] == nil {
				won++
				continue
			}
			refused(t, errs[i], fault.Busy, "tea", "node")
		}
		if won != 1 {
			t.Fatalf("%d nodes have it: %v", won, errs)
		}
		for _, d := range devices {
			if d != nil {
				check(t, d.Close())
			}
		}
		c.nodes["a"].state("tea", "detached")
		c.nodes["b"].state("tea", "detached")
	}
}

func TestExplicit(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a", "b")
	a, b := c.nodes["a"], c.nodes["b"]
	c.volume(a, "tea", testSize, "pa", "pb")
	at, err := b.Attach(t.Context(), "tea", resource.Attach{Node: "a"})
	check(t, err)
	if at.Node != "a" || at.URI != "nbd://127.0.0.1:10809/tea" || at.Local != "nbd+unix:///tea?socket=/run/a" {
		t.Fatalf("%+v", at)
	}
	// Clients come and go: it stays.
	d := a.open("tea")
	write(t, d, 0, 3, 4096)
	check(t, d.Close())
	a.mu.Lock()
	h := a.held[a.record("tea").Volume]
	idle := h == nil || h.idle != nil
	a.mu.Unlock()
	if idle {
		t.Fatal("an explicit attachment has an idle timer")
	}
	// Without a node it is the holder's, and again is no error.
	at, err = b.Attach(t.Context(), "tea", resource.Attach{})
	if err != nil || at.Node != "a" {
		t.Fatalf("%+v %v", at, err)
	}
	// The holder is killed and comes back at once: so does the attachment, with what was written.
	epoch := a.record("tea").Epoch
	a.kill()
	c.memory.Advance(a.leaseTime() + time.Second)
	a = c.start("a")
	c.awaitOnline("a")
	await(t, "tea is attached on a again", func() bool {
		v, err := b.Volume(t.Context(), "tea")
		return err == nil && v.State == "attached" && v.Mode == modeExplicit && v.Epoch > uint64(epoch)
	})
	d = a.open("tea")
	reads(t, d, 0, 3, 4096)
	check(t, d.Close())
	// Ended in order it comes back as well; detached by a person it does not.
	a.end()
	await(t, "a is gone", func() bool { return !b.view.online("a") })
	c.start("a")
	c.awaitOnline("a")
	await(t, "tea is attached on a again", func() bool {
		v, err := b.Volume(t.Context(), "tea")
		return err == nil && v.State == "attached" && v.Mode == modeExplicit
	})
	check(t, b.Detach(t.Context(), "tea"))
	check(t, b.Detach(t.Context(), "tea"))
	if cfg := b.record("tea"); cfg.Holder != "" {
		t.Fatalf("held by %s", cfg.Holder)
	}
	await(t, "the events are there", func() bool {
		r := b.reasons("volume tea")
		return slices.Contains(r, "volume-created") && slices.Contains(r, "serving") && slices.Contains(r, "detached")
	})
}

// A client that comes while an idle attachment leaves waits and gets a new one.
func TestOpenWhileLeaving(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a")
	c.pools("a")
	a := c.nodes["a"]
	c.volume(a, "tea", testSize, "pa")
	for range 5 {
		d := a.open("tea")
		check(t, d.Close())
		check(t, d.Close()) // counted once
		id := a.record("tea").Volume
		a.mu.Lock()
		h := a.held[id]
		a.mu.Unlock()
		if h == nil {
			continue // it has left already
		}
		go a.releaseUnused(h, modeAutomatic)
		d = a.open("tea")
		write(t, d, 0, 1, 512)
		check(t, d.Close())
	}
	a.state("tea", "detached")
}

// An explicit attachment takes an automatic one over while its timer runs.
func TestExplicitDuringIdle(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a")
	c.pools("a")
	a := c.nodes["a"]
	c.volume(a, "tea", testSize, "pa")
	check(t, a.open("tea").Close())
	_, err := a.Attach(t.Context(), "tea", resource.Attach{})
	check(t, err)
	id := a.record("tea").Volume
	a.mu.Lock()
	h := a.held[id]
	a.mu.Unlock()
	a.releaseUnused(h, modeAutomatic) // a timer that had fired already
	if v := a.state("tea", "attached"); v.Mode != modeExplicit {
		t.Fatalf("%+v", v)
	}
	check(t, a.Detach(t.Context(), "tea"))
	a.state("tea", "detached")
}
