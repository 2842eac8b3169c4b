package control

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"samovar/internal/etcd/etcdtest"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// failWrite lets the next write that touches a key fail in one way, once.
func (n *node) failWrite(prefix string, f etcdtest.Fault) {
	done := false
	n.store.Inject(func(call etcdtest.Call) etcdtest.Fault {
		touches := func(key string) bool { return strings.HasPrefix(key, prefix) }
		if done || !call.Write || !slices.ContainsFunc(call.Keys, touches) {
			return etcdtest.Pass
		}
		done = true
		return f
	})
}

// Creating a volume fails at each step, and leaves nothing, or happens after all.
func TestCreateUndone(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a", "b")
	a, b := c.nodes["a"], c.nodes["b"]
	create := func(name string) error {
		_, err := a.CreateVolume(within(t, 10*time.Second), resource.NewVolume{Name: name, Size: testSize, Copies: 2})
		return err
	}
	empty := func(what string) {
		t.Helper()
		await(t, what+": nothing is left", func() bool { return len(a.replicaDirs("pa"))+len(b.replicaDirs("pb")) == 0 })
	}
	lost := fault.New(fault.Unavailable, "call", "no answer")
	at := func(call string) func(string, string) error {
		return func(_, made string) error {
			if made == call {
				return lost
			}
			return nil
		}
	}

	c.peers.set(at("create-replica"), nil)
	refused(t, create("tea"), fault.Unavailable)
	empty("the call failed")
	c.peers.set(nil, at("create-replica"))
	refused(t, create("tea"), fault.Unavailable)
	empty("the call failed, but it happened")
	c.peers.set(nil, nil)

	a.failWrite("names/tea", etcdtest.Unavailable)
	refused(t, create("tea"), fault.Unavailable)
	empty("the store was away")
	a.failWrite("names/tea", etcdtest.LostRequest)
	refused(t, create("tea"), fault.Aborted)
	empty("the request was lost")

	a.failWrite("names/tea", etcdtest.LostReply)
	check(t, create("tea"))
	refused(t, create("tea"), fault.Exists, "tea", "volume info")
	check(t, a.DeleteVolume(t.Context(), "tea"))
	empty("deleted")
	check(t, create("tea"))
	if w, ok := find[wantRecord](a.view, wantKey(a.record("tea").Volume)); !ok || w.Copies != 2 {
		t.Fatalf("%+v", w)
	}
}

// While creation is undone the store goes away: what is left is removed when it is known to be nobody's.
func TestCreateUndoneLater(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a", "b")
	a, b := c.nodes["a"], c.nodes["b"]
	c.peers.set(nil, func(_, call string) error {
		if call == "delete-replica" {
			return fault.New(fault.Unavailable, call, "no answer")
		}
		return nil
	})
	a.store.Inject(func(call etcdtest.Call) etcdtest.Fault {
		if call.Write && (strings.HasPrefix(call.Keys[0], "names/") || strings.HasPrefix(call.Keys[0], "deleted/")) {
			return etcdtest.LostReply
		}
		return etcdtest.Pass
	})
	// The records were written, and so the mark was not: which of it, cannot be told now.
	_, err := a.CreateVolume(within(t, 10*time.Second), resource.NewVolume{Name: "tea", Size: testSize})
	a.store.Inject(nil)
	if err != nil {
		refused(t, err, fault.Aborted, "tea")
	}
	b.state("tea", "detached")
	check(t, b.DeleteVolume(t.Context(), "tea"))
	await(t, "nothing is left", func() bool { return len(a.replicaDirs("pa"))+len(b.replicaDirs("pb")) == 0 })
}

func TestCreateRefused(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a")
	a := c.nodes["a"]
	for _, test := range []struct {
		q     resource.NewVolume
		kind  fault.Kind
		names []string
	}{
		{resource.NewVolume{Name: "tea", Size: testSize, Copies: 2}, fault.NoSpace, []string{"tea", "1 of 2"}},
		{resource.NewVolume{Name: "tea", Size: testSize, Copies: 99}, fault.Invalid, []string{"tea", "copies"}},
		{resource.NewVolume{Name: "tea", Size: testSize + 1, Copies: 1}, fault.Invalid, []string{"tea", "512"}},
		{resource.NewVolume{Name: "tea", Size: testSize, Copies: 1, ExtentSize: 3 << 20}, fault.Invalid, []string{"tea", "extent"}},
		{resource.NewVolume{Name: "tea", Size: 1 << 40, Copies: 1, ExtentSize: 1 << 20}, fault.Invalid, []string{"tea", "16384"}},
		{resource.NewVolume{Name: "tea", Size: testSize, Copies: 1, Pools: []string{"px"}}, fault.NotFound, []string{"px"}},
	} {
		_, err := a.CreateVolume(t.Context(), test.q)
		refused(t, err, test.kind, test.names...)
	}
	if dirs := a.replicaDirs("pa"); len(dirs) > 0 {
		t.Fatalf("left in the pool: %v", dirs)
	}
	refused(t, a.DeleteVolume(t.Context(), "tea"), fault.NotFound, "tea")
	refused(t, a.Detach(t.Context(), "tea"), fault.NotFound, "tea")
	_, err := a.Attach(t.Context(), "tea", resource.Attach{Node: "x"})
	refused(t, err, fault.NotFound, "node x")
}

// A pool's creation that fails at the store goes on with the same command; a taken name costs nothing.
func TestCreatePoolAgain(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	a := c.nodes["a"]
	dir := filepath.Join(t.TempDir(), "pool")
	create := func(n *node, name string) error {
		_, err := n.CreatePool(within(t, 10*time.Second), resource.NewPool{Node: "a", Name: name, Dir: dir})
		return err
	}
	a.failWrite("poolnames/", etcdtest.Unavailable)
	refused(t, create(c.nodes["b"], "ssd"), fault.Unavailable, "ssd", dir, "again")
	a.failWrite("poolnames/", etcdtest.LostRequest)
	refused(t, create(a, "ssd"), fault.Aborted, "ssd", dir, "again")
	refused(t, create(a, "hdd"), fault.Exists, dir)
	a.failWrite("poolnames/", etcdtest.LostReply)
	check(t, create(a, "ssd"))
	refused(t, create(a, "ssd"), fault.Exists, "ssd", "pool list")
	refused(t, create(a, "hdd"), fault.Exists, dir)
	_, err := a.CreatePool(t.Context(), resource.NewPool{Name: "hdd", Dir: "relative"})
	refused(t, err, fault.Invalid, "hdd", "absolute", "relative")
	_, err = a.CreatePool(t.Context(), resource.NewPool{Name: "hdd", Node: "x", Dir: dir})
	refused(t, err, fault.NotFound, "node x")
}

// The store goes away: I/O goes on, clients come back, changes are refused in time; then all is as before.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a", "b")
	a := c.nodes["a"]
	c.volume(a, "tea", testSize, "pa", "pb")
	c.volume(a, "milk", testSize, "pa", "pb")
	d := a.open("tea")
	write(t, d, 0, 1, 4096)
	c.memory.SetMajority(false)
	await(t, "a notices", func() bool { trouble, _ := a.view.state(); return trouble != "" })
	write(t, d, 4096, 2, 4096)
	flush(t, d)
	check(t, d.Close())
	time.Sleep(2 * a.opts.IdleDetach) // the timer fires meanwhile; it must find a reason not to detach
	d = a.open("tea")
	reads(t, d, 4096, 2, 4096)
	c.memory.Advance(2 * a.leaseTime())
	write(t, d, 8192, 3, 4096)

	ctx := within(t, 20*time.Second)
	_, err := a.Open(ctx, "milk")
	refused(t, err, fault.Unavailable)
	_, err = a.Attach(ctx, "milk", resource.Attach{Node: "a"})
	refused(t, err, fault.Unavailable)
	_, err = a.CreateVolume(ctx, resource.NewVolume{Name: "cup", Size: testSize})
	refused(t, err, fault.Unavailable)
	refused(t, a.DeleteVolume(ctx, "milk"), fault.Unavailable)
	refused(t, a.Detach(ctx, "tea"), fault.Unavailable)
	s, err := a.Status(ctx)
	if err != nil || s.Healthy || !strings.Contains(s.Store, "majority") {
		t.Fatalf("%+v %v", s, err)
	}
	check(t, ctx.Err())

	c.memory.SetMajority(true)
	c.awaitOnline("a")
	c.awaitOnline("b")
	c.awaitPool("pa")
	reads(t, d, 8192, 3, 4096)
	check(t, d.Close())
	a.state("tea", "detached")
	await(t, "nothing is wrong any more", func() bool {
		s, err := a.Status(t.Context())
		return err == nil && s.Healthy && s.Store == "ok"
	})
	if r := a.reasons("pool pa"); slices.Contains(r, "pool-offline") {
		t.Fatalf("a pool that was served all the time: %v", r)
	}
}

// One node loses its lease and takes it again; its pools are claimed anew and replicas never stop.
func TestLeaseRegained(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a", "b")
	a, b := c.nodes["a"], c.nodes["b"]
	c.volume(a, "tea", testSize, "pa", "pb")
	d := a.open("tea")
	write(t, d, 0, 1, 512)
	b.mu.Lock()
	lease := b.session.Lease()
	b.mu.Unlock()
	c.memory.Revoke(lease)
	await(t, "b has a new lease for itself and its pool", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.session == nil || b.session.Lease() == lease {
			return false
		}
		for _, lp := range b.pools {
			if lp.lease != b.session.Lease() {
				return false
			}
		}
		return true
	})
	c.awaitOnline("b")
	write(t, d, 512, 2, 512)
	if v := a.state("tea", "attached"); !v.Redundant || v.Generation != 1 {
		t.Fatalf("%+v", v)
	}
	check(t, d.Close())
	for id, lp := range b.pools {
		r, err := b.store.Get(t.Context(), "claims/"+id.String())
		if err != nil || r.Lease != lp.lease {
			t.Fatalf("%+v %v", r, err)
		}
	}
}

// A second process under a node's name is kept out, and changes nothing of the first one's.
func TestNameReused(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a")
	first, b := c.nodes["a"], c.nodes["b"]
	c.volume(b, "tea", testSize, "pa")
	delete(c.nodes, "a") // another address
	second := c.start("a")
	c.peers.mu.Lock()
	c.peers.nodes["a"] = first.Control
	c.peers.mu.Unlock()
	c.nodes["a"] = first
	defer second.end()
	_, err := second.register(t.Context())
	refused(t, err, fault.Busy, "node a", "another name")
	d := first.open("tea")
	write(t, d, 0, 1, 512)
	_, err = second.Open(within(t, time.Second), "tea")
	refused(t, err, fault.Unavailable, "node a", "this name")
	write(t, d, 0, 2, 512)
	check(t, d.Close())
	if m, ok := find[memberRecord](b.view, "members/a"); !ok || m.Data != first.address {
		t.Fatalf("%+v", m)
	}
	if p := second.opened(b.record("tea").Groups[0].Members[0].Pool); p != nil {
		t.Fatal("the second process has opened the pool")
	}
}

// A store that is another cluster's, or empty, is not joined.
func TestForeignStore(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"", `{"id":"ff"}`, "garbage"} {
		client := etcdtest.New().Client()
		if value != "" {
			check(t, client.Put(t.Context(), "cluster", []byte(value)).Err)
		}
		n := New(Options{Node: "a", Store: client, Logger: quiet(), Cluster: clusterID(), PingTimeout: testPing})
		_, err := n.register(t.Context())
		refused(t, err, fault.Foreign, "node a", "endpoints")
		all, err := client.List(t.Context(), "")
		check(t, err)
		if len(all.Items) > 1 {
			t.Fatalf("written: %v", all.Items)
		}
		check(t, client.Close())
	}
}

// Two directories with one pool's id: the second claimant is refused, and gets it when the first has gone.
func TestClaims(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a")
	a, b := c.nodes["a"], c.nodes["b"]
	p, err := a.Pool(t.Context(), "pa")
	check(t, err)
	await(t, "a has claimed it", func() bool { _, ok := b.view.get("claims/" + p.ID); return ok })
	var record poolRecord
	each(b.view, "pools/", func(_ string, r poolRecord) { record = r })
	record.Node = "b"
	b.mu.Lock()
	session := b.session
	b.mu.Unlock()
	refused(t, b.claimPool(context.Background(), record, session), fault.Busy, "pool pa", "node a")
	a.end()
	await(t, "its claim has gone", func() bool { _, ok := b.view.get("claims/" + p.ID); return !ok })
	check(t, b.claimPool(context.Background(), record, session))

	// Now a comes back, and it is a that is refused; its pool says why.
	a = c.start("a")
	c.awaitOnline("a")
	await(t, "pa says why it is not served", func() bool {
		p, err := b.Pool(t.Context(), "pa")
		return err == nil && !p.Online && strings.Contains(p.Cause, "node b")
	})
	check(t, b.store.Delete(t.Context(), "claims/"+p.ID).Err)
	c.awaitPool("pa")
	await(t, "the events are there", func() bool {
		r := a.reasons("pool pa")
		return slices.Contains(r, "pool-offline") && r[len(r)-1] == "pool-online"
	})
}
