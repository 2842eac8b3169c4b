// Package fake is a cluster in memory, for tests of the API and of faces: it keeps objects, refuses what a real
// cluster would refuse for the same reasons, and fails when told to. It stores no bytes and has no clock: times
// stand where a test puts them.
package fake

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"samovar/internal/fault"
	"samovar/internal/resource"
)

// Cluster is an api.Backend.
type Cluster struct {
	mu       sync.Mutex
	version  resource.Version
	status   resource.Status
	nodes    []resource.Node
	pools    []resource.Pool
	volumes  []resource.Volume
	events   []resource.Event
	verified resource.Verified
	fail     map[string]error
	calls    []string
	follower map[chan resource.Event]struct{}
	followed chan struct{} // a token for every Follow that began
}

// Start is the time of the fake's first event.
var Start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// New makes a cluster of three nodes, with pools ssd1, ssd2 and ssd3 of 1 TiB, n3 offline, and two volumes: tea,
// attached on n1, and milk, whose copy on n3 is absent.
func New() *Cluster {
	c := &Cluster{fail: map[string]error{}, follower: map[chan resource.Event]struct{}{}, followed: make(chan struct{}, 1000)}
	c.version = resource.Version{Version: "0.1.0", Go: "go1.26.0", Node: "n1", Cluster: "kitchen", Store: 1, Protocol: 1}
	c.status = resource.Status{Cluster: "kitchen", Store: "ok", Nodes: 3, Online: 2, Pools: 3, Volumes: 2, Attached: 1, Degraded: 1,
		Total: 3 << 40, Free: 5 << 39, Problems: []string{"node n3 is offline: no answer since 12:00:00", "volume milk has 1 of 2 copies"},
		Survives: "no further node may be lost: 2 of 3 members of the cluster store are left"}
	for i := range 3 {
		name, pool := fmt.Sprintf("n%d", i+1), fmt.Sprintf("ssd%d", i+1)
		host := fmt.Sprintf("10.0.0.%d", i+1)
		c.nodes = append(c.nodes, resource.Node{Name: name, Online: i < 2, Member: true, Leader: i == 0, API: host + ":7700", Data: host + ":7701",
			NBD: []string{"unix:/run/samovar/nbd.sock", host + ":10809"}, Version: "0.1.0", Started: Start, Pools: []string{pool}})
		c.pools = append(c.pools, resource.Pool{ID: fmt.Sprintf("%032x", i+1), Name: pool, Node: name, Dir: "/srv/samovar/" + pool, Online: i < 2,
			Kind: "xfs", Total: 1 << 40, Free: 1 << 39, Reserved: 10 << 30, Direct: true, Replicas: 1})
	}
	c.nodes[0].Attached = []string{"tea"}
	c.nodes[2].Cause, c.pools[2].Cause = "no answer since 12:00:00", "node n3 is offline"
	tea := volume("tea", 10<<30, []string{"ssd1", "ssd2"}, c.pools)
	c.attach(&tea, "n1")
	tea.Verified = &resource.Verified{At: Start, Equal: true, Bytes: 10 << 30, Copies: 2}
	milk := volume("milk", 512<<20, []string{"ssd2", "ssd3"}, c.pools)
	milk.Replicas[1].State, milk.Replicas[1].Connected = "absent", false
	milk.Replicas[1].OutOfSync, milk.Replicas[1].Cause = 64<<20, "node n3 is offline"
	milk.Redundant = false
	c.volumes = []resource.Volume{milk, tea}
	c.verified = resource.Verified{At: Start, Equal: true, Bytes: 10 << 30, Copies: 2}
	c.event("node n3", "offline", "no answer since 12:00:00", "error")
	c.event("volume milk", "copy-absent", "the copy on ssd3 (node n3) is absent", "warning")
	c.event("volume tea", "attached", "on node n1 by request", "info")
	return c
}

func volume(name string, size uint64, pools []string, all []resource.Pool) resource.Volume {
	id := [16]byte{15: byte(len(name))}
	copy(id[:], name)
	v := resource.Volume{ID: fmt.Sprintf("%x", id), Name: name, Size: size, ExtentSize: 64 << 20, Copies: len(pools),
		Redundant: true, State: "detached", Generation: 1}
	for _, pool := range pools {
		r := resource.Replica{Pool: pool, State: "in-sync", Connected: true, Used: size / 2}
		for _, p := range all {
			if p.Name == pool {
				r.Node = p.Node
			}
		}
		v.Replicas = append(v.Replicas, r)
	}
	return v
}

func (c *Cluster) attach(v *resource.Volume, node string) {
	host := "10.0.0." + node[1:]
	v.Attached, v.Holder, v.Mode, v.State, v.Epoch = true, node, "explicit", "attached", v.Epoch+1
	socket := "/run/samovar/nbd.sock"
	v.Address = &resource.Attachment{Volume: v.Name, Node: node, Socket: socket, URI: "nbd://" + host + ":10809/" + v.Name,
		Local: "nbd+unix:///" + v.Name + "?socket=" + socket}
}

// event adds an event and sends it; mu is held, or nobody else has c yet.
func (c *Cluster) event(object, reason, text, level string) resource.Event {
	n := len(c.events)
	e := resource.Event{ID: fmt.Sprintf("%016d", n+1), Time: Start.Add(time.Duration(n) * time.Minute), Node: "n1",
		Object: object, Reason: reason, Text: text, Level: level}
	c.events = append(c.events, e)
	for f := range c.follower {
		select {
		case f <- e:
		default: // too slow: it has to ask again
			delete(c.follower, f)
			close(f)
		}
	}
	return e
}

// Publish adds an event.
func (c *Cluster) Publish(object, reason, text, level string) resource.Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.event(object, reason, text, level)
}

// Fail makes a call ("CreateVolume") fail with err from now on; nil lets it work again.
func (c *Cluster) Fail(call string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail[call] = err
}

// Change edits the cluster's objects under its lock.
func (c *Cluster) Change(edit func(*resource.Status, []resource.Node, []resource.Pool, []resource.Volume)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	edit(&c.status, c.nodes, c.pools, c.volumes)
}

// SetVerified makes Verify end with v.
func (c *Cluster) SetVerified(v resource.Verified) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.verified = v
}

// Calls lists the calls so far that changed something or went from node to node.
func (c *Cluster) Calls() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

// Followed waits until one more Follow than before has begun.
func (c *Cluster) Followed(ctx context.Context) error {
	select {
	case <-c.followed:
		return nil
	case <-ctx.Done():
		return fault.Wrap(fault.Aborted, "wait for a follower", ctx.Err())
	}
}

// Break closes the channel of every follower, as a lost source does.
func (c *Cluster) Break() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for f := range c.follower {
		delete(c.follower, f)
		close(f)
	}
}

// begin takes the lock and tells whether the call was made to fail. The caller unlocks.
func (c *Cluster) begin(call string, log ...any) error {
	c.mu.Lock()
	if len(log) > 0 {
		c.calls = append(c.calls, fmt.Sprint(call, " ", fmt.Sprint(log...)))
	}
	return c.fail[call]
}
