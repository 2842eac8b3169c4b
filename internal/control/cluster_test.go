package control

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"samovar/internal/block"
	"samovar/internal/driver/link"
	"samovar/internal/etcd/etcdtest"
	"samovar/internal/fault"
	"samovar/internal/resource"
	"samovar/internal/store/disk"
	"samovar/internal/volume"
)

const testPing = time.Second

// cluster is several nodes in this process: real pools, replicas and links over loopback, and a cluster store in
// memory, whose time passes by advance.
type cluster struct {
	t      *testing.T
	memory *etcdtest.Memory
	peers  *peers
	nodes  map[string]*node
	dir    string
}

// peers carries calls straight to the other Control.
type peers struct {
	mu     sync.Mutex // guards what follows
	nodes  map[string]*Control
	before func(node, call string) error // may fail a call, or hold it up
	after  func(node, call string) error // may lose its answer
}

// Call asks a node; its address is its name.
func (p *peers) Call(ctx context.Context, address, call string, body []byte) ([]byte, error) {
	p.mu.Lock()
	c, before, after := p.nodes[address], p.before, p.after
	p.mu.Unlock()
	if c == nil {
		return nil, fault.New(fault.Unavailable, call+" on node "+address, "connection refused")
	}
	if before != nil {
		if err := before(address, call); err != nil {
			return nil, err
		}
	}
	answer, err := c.Internal(ctx, call, body)
	if after != nil {
		if lost := after(address, call); lost != nil {
			return nil, lost
		}
	}
	return answer, err
}

// Verify asks a node to compare a volume.
func (p *peers) Verify(ctx context.Context, address, name string, progress func(done, todo uint64)) (resource.Verified, error) {
	p.mu.Lock()
	c := p.nodes[address]
	p.mu.Unlock()
	if c == nil {
		return resource.Verified{}, fault.New(fault.Unavailable, "verify on node "+address, "connection refused")
	}
	return c.Verify(ctx, name, progress)
}

func (p *peers) set(before, after func(node, call string) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before, p.after = before, after
}

// node is one process.
type node struct {
	*Control
	cluster *cluster
	name    string
	store   *etcdtest.Client
	address string // of replica sessions; the same after a restart
	cancel  context.CancelFunc
	data    context.CancelFunc
	ended   sync.WaitGroup
}

func testCluster(t *testing.T, names ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, memory: etcdtest.New(), peers: &peers{nodes: map[string]*Control{}}, nodes: map[string]*node{},
		dir: t.TempDir()} // made first, so removed last
	setUp := c.memory.Client()
	id := clusterID()
	value, err := json.Marshal(map[string]string{"id": hex.EncodeToString(id[:])})
	check(t, err)
	check(t, setUp.Put(t.Context(), "cluster", value).Err)
	check(t, setUp.Close())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		for _, n := range c.nodes {
			n.detachAll(ctx) // while there are replicas
		}
		for _, n := range c.nodes {
			n.end()
		}
	})
	for _, name := range names {
		c.start(name)
	}
	for _, name := range names {
		c.awaitOnline(name)
	}
	return c
}

func clusterID() [16]byte { return [16]byte{1, 2, 3} }

// start starts a node, or starts it again.
func (c *cluster) start(name string) *node {
	c.t.Helper()
	n := &node{cluster: c, name: name, store: c.memory.Client(), address: "127.0.0.1:0"}
	if was := c.nodes[name]; was != nil {
		n.address = was.address
	}
	ln, err := net.Listen("tcp", n.address)
	check(c.t, err)
	n.address = ln.Addr().String()
	var out io.Writer = io.Discard
	if testing.Verbose() {
		out = c.t.Output()
	}
	log := slog.New(slog.NewTextHandler(out, nil)).With("node", name)
	n.Control = New(Options{
		Node: name, API: name, Data: n.address, NBD: []string{"127.0.0.1:10809"}, Socket: "/run/" + name,
		Cluster: clusterID(), PingTimeout: testPing, IdleDetach: 300 * time.Millisecond, RecoveryPace: 200 * time.Millisecond,
		StoreFiles: disk.Native{}, Buffers: block.NewPool(), Counters: &link.Counters{}, Store: n.store,
		Peers: c.peers, Logger: log, Version: resource.Version{Version: "test", Node: name},
	})
	ctx, cancel := context.WithCancel(context.Background())
	data, stopData := context.WithCancel(context.Background())
	n.cancel, n.data = cancel, stopData
	n.ended.Go(func() {
		if err := link.Serve(data, ln, n.LinkOptions(), n.Replicas(), log); err != nil {
			log.Error("serve replica sessions", "error", err)
		}
	})
	n.ended.Go(func() {
		n.Run(ctx, func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), 10*time.Second)
		})
		stopData()
	})
	c.peers.mu.Lock()
	c.peers.nodes[name] = n.Control
	c.peers.mu.Unlock()
	c.nodes[name] = n
	return n
}

// end ends a node in order. A second time it does nothing.
func (n *node) end() {
	n.disappear()
	n.cancel()
	n.ended.Wait()
	if err := n.store.Close(); err != nil {
		n.cluster.t.Error(err)
	}
}

func (n *node) disappear() {
	n.cluster.peers.mu.Lock()
	defer n.cluster.peers.mu.Unlock()
	if n.cluster.peers.nodes[n.name] == n.Control {
		delete(n.cluster.peers.nodes, n.name)
	}
}

// kill ends a node as kill -9 does: nothing is drained, given back or told.
func (n *node) kill() {
	n.disappear()
	n.store.SetReachable(false)
	n.mu.Lock()
	n.ending = true
	var all []*held
	for _, h := range n.held {
		h.leaving = true
		all = append(all, h)
	}
	n.mu.Unlock()
	for _, h := range all {
		h.att.Abort()
	}
	n.end()
}

// lose kills a node and lets its lease run out.
func (n *node) lose() {
	n.cluster.t.Helper()
	n.kill()
	n.cluster.memory.Advance(n.leaseTime() + time.Second)
	for _, other := range n.cluster.nodes {
		if other.name != n.name && n.cluster.peers.has(other.name) {
			await(n.cluster.t, other.name+" sees that "+n.name+" is lost", func() bool { return !other.view.online(n.name) })
		}
	}
}

func (p *peers) has(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nodes[name] != nil
}

func (c *cluster) awaitOnline(name string) {
	c.t.Helper()
	for _, other := range c.nodes {
		if c.peers.has(other.name) {
			await(c.t, other.name+" sees "+name, func() bool { return other.view.online(name) })
		}
	}
}

// pools makes a pool on each node, named as the node with a p, and waits until every node sees them.
func (c *cluster) pools(names ...string) {
	c.t.Helper()
	for _, name := range names {
		p, err := c.nodes[name].CreatePool(c.t.Context(), resource.NewPool{Node: name, Dir: filepath.Join(c.dir, "p"+name), Name: "p" + name})
		check(c.t, err)
		if p.Name != "p"+name || p.Node != name {
			c.t.Fatalf("created %+v", p)
		}
	}
	for _, name := range names {
		c.awaitPool("p" + name)
	}
}

func (c *cluster) awaitPool(pool string) {
	c.t.Helper()
	for _, n := range c.nodes {
		if c.peers.has(n.name) {
			await(c.t, n.name+" sees pool "+pool+" online", func() bool {
				p, err := n.Pool(c.t.Context(), pool)
				return err == nil && p.Online && p.Free > 0
			})
		}
	}
}

// volume makes a volume and waits until every node sees it.
func (c *cluster) volume(at *node, name string, size uint64, pools ...string) {
	c.t.Helper()
	v, err := at.CreateVolume(c.t.Context(), resource.NewVolume{Name: name, Size: size, Copies: len(pools), ExtentSize: 1 << 20, Pools: pools})
	check(c.t, err)
	if v.Name != name || v.State != "detached" || !v.Redundant {
		c.t.Fatalf("created %+v", v)
	}
	for _, n := range c.nodes {
		if c.peers.has(n.name) {
			await(c.t, n.name+" sees volume "+name, func() bool { _, ok := n.view.volumeID(name); return ok })
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refused checks the kind of an error, and that its text names what it must.
func refused(t *testing.T, err error, kind fault.Kind, names ...string) {
	t.Helper()
	if !fault.Is(err, kind) {
		t.Fatalf("got %v (%v), want kind %v", err, fault.KindOf(err), kind)
	}
	for _, name := range names {
		if !bytes.Contains([]byte(err.Error()), []byte(name)) {
			t.Fatalf("error %q does not name %q", err, name)
		}
	}
}

// await waits for a condition that other goroutines bring about.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatal("this did not come true: " + what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// within bounds a call by a time that it must not need.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func (n *node) open(name string) block.Device {
	n.cluster.t.Helper()
	d, err := n.Open(within(n.cluster.t, 20*time.Second), name)
	check(n.cluster.t, err)
	return d
}

// request does one I/O and waits for it.
func request(t *testing.T, d block.Device, q *block.Request) ([]byte, error) {
	t.Helper()
	done := make(chan error, 1)
	q.Done = func(_ *block.Request, err error) { done <- err }
	d.Submit([]*block.Request{q})
	select {
	case err := <-done:
		if err != nil || q.Op != block.Read {
			q.Data.Release()
			return nil, err
		}
		defer q.Data.Release()
		return append([]byte(nil), q.Data.Bytes()...), nil
	case <-time.After(20 * time.Second):
		t.Fatalf("a %v was not answered", q.Op)
		return nil, nil
	}
}

func write(t *testing.T, d block.Device, off uint64, value byte, n int) {
	t.Helper()
	b := block.NewPool().Get(n)
	copy(b.Bytes(), bytes.Repeat([]byte{value}, n))
	_, err := request(t, d, &block.Request{Op: block.Write, Offset: off, Length: uint64(n), Data: b})
	check(t, err)
}

func flush(t *testing.T, d block.Device) {
	t.Helper()
	_, err := request(t, d, &block.Request{Op: block.Flush})
	check(t, err)
}

func reads(t *testing.T, d block.Device, off uint64, value byte, n int) {
	t.Helper()
	got, err := request(t, d, &block.Request{Op: block.Read, Offset: off, Length: uint64(n)})
	check(t, err)
	if !bytes.Equal(got, bytes.Repeat([]byte{value}, n)) {
		t.Fatalf("at %d: read something else than %d", off, value)
	}
}

// state waits until a volume is in a state and tells how it then is.
func (n *node) state(name, state string) (v resource.Volume) {
	n.cluster.t.Helper()
	await(n.cluster.t, "volume "+name+" is "+state+" for "+n.name, func() bool {
		var err error
		v, err = n.Volume(n.cluster.t.Context(), name)
		return err == nil && v.State == state
	})
	return v
}

func (n *node) record(name string) volume.Configuration {
	n.cluster.t.Helper()
	id, err := n.lookUp(n.cluster.t.Context(), name)
	check(n.cluster.t, err)
	cfg, err := records{n.store}.Look(n.cluster.t.Context(), id)
	check(n.cluster.t, err)
	return cfg
}

// replicaDirs lists what a pool has of volumes.
func (n *node) replicaDirs(pool string) []string {
	n.cluster.t.Helper()
	p, err := n.Pool(n.cluster.t.Context(), pool)
	check(n.cluster.t, err)
	entries, err := os.ReadDir(p.Dir)
	check(n.cluster.t, err)
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, filepath.Join(p.Dir, e.Name()))
		}
	}
	return out
}

// reasons lists the reasons of events about an object, as a node sees them.
func (n *node) reasons(object string) []string {
	n.cluster.t.Helper()
	all, err := n.Events(n.cluster.t.Context(), "", 0)
	check(n.cluster.t, err)
	var out []string
	for _, e := range all {
		if e.Object == object {
			out = append(out, e.Reason)
		}
	}
	return out
}
