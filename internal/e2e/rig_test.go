package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"samovar/internal/api/client"
	"samovar/internal/dev"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

const (
	mib = 1 << 20
	// ping is the ping time-out of most stories: the shortest there is.
	ping = time.Second
	// patience is how long anything may take that should happen soon.
	patience = 45 * time.Second
)

// rig is a cluster of a test.
type rig struct {
	*dev.Cluster
	t   *testing.T
	dir string
	api *client.Client
}

// start runs a cluster until the test ends. Options need no Binary and Dir.
func start(t *testing.T, o dev.Options) *rig {
	t.Helper()
	// Short, for the unix sockets in it, and ours: it outlives what the test's own directory allows.
	dir, err := os.MkdirTemp("", "e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	r := rigIn(t, dir, o)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := r.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return r
}

// rigIn lays a cluster out in a directory, without starting it.
func rigIn(t *testing.T, dir string, o dev.Options) *rig {
	t.Helper()
	o.Binary, o.Dir = os.Getenv(binaryVariable), dir
	if len(o.Hosts) == 0 {
		o.Hosts = loopback(dir, o.Nodes+1) // there may be a witness
	}
	if o.PingTimeout == 0 {
		o.PingTimeout = ping
	}
	inner := o.Exec
	o.Exec = func(node int, cmd *exec.Cmd) *exec.Cmd {
		if inner != nil {
			cmd = inner(node, cmd)
		}
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL // also stopped nodes end with a test run that is killed
		return cmd
	}
	c, err := dev.New(o)
	if err != nil {
		t.Fatal(err)
	}
	api, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Cluster: c, t: t, dir: dir, api: api}
	t.Cleanup(r.end)
	return r
}

// loopback gives each node an address on loopback that nobody else has, so that no port is ever taken: neither by
// another test, nor while a node is down.
func loopback(dir string, nodes int) []string {
	h := crc32.ChecksumIEEE([]byte(dir)) // the directory's name is unique
	var out []string
	for i := range nodes {
		out = append(out, fmt.Sprintf("127.%d.%d.%d", 1+h%250, h>>8&0xff, h>>16&15<<4+uint32(i)+1))
	}
	return out
}

// end kills what runs, after it has shown what happened if the test failed.
func (r *rig) end() {
	for _, n := range r.Nodes {
		log, err := os.ReadFile(n.Log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			r.t.Error(err)
		}
		for _, word := range []string{"\npanic: ", "\nfatal error: ", "WARNING: DATA RACE"} {
			if at := bytes.Index(log, []byte(word)); at >= 0 {
				r.t.Errorf("node %s broke:\n%s", n.Name, log[at:min(len(log), at+8000)])
			}
		}
	}
	if r.t.Failed() {
		r.show()
	}
	r.api.Close()
	for _, n := range r.Nodes {
		if err := n.Kill(); err != nil && !fault.Is(err, fault.Invalid) {
			r.t.Error(err)
		}
	}
}

// show prints volumes, events and the ends of the nodes' logs.
func (r *rig) show() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	volumes, err := r.api.Volumes(ctx)
	r.t.Logf("volumes: %s (%v)", indented(volumes), err)
	events, err := r.api.Events(ctx, "", 200)
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "  %s %s %s %s: %s\n", e.Time.Format("15:04:05.000"), e.Node, e.Object, e.Reason, e.Text)
	}
	r.t.Logf("events (%v):\n%s", err, b.String())
	for _, n := range r.Nodes {
		log, err := os.ReadFile(n.Log)
		lines := bytes.Split(log, []byte("\n"))
		lines = lines[max(0, len(lines)-60):]
		r.t.Logf("log of %s (%v):\n%s", n.Name, err, bytes.Join(lines, []byte("\n")))
	}
}

// until repeats a question until it is answered without an error, and fails the test when that takes too long.
func (r *rig) until(what string, limit time.Duration, ask func(context.Context) error) {
	r.t.Helper()
	if err := r.ask(what, limit, ask); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) ask(what string, limit time.Duration, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(r.t.Context(), limit)
	defer cancel()
	last := errors.New("not answered")
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %v until %s: %w", limit, what, last)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// create makes a volume; pools are nodes' names, where its copies go.
func (r *rig) create(name string, size uint64, nodes ...string) {
	r.t.Helper()
	q := resource.NewVolume{Name: name, Size: size, Copies: len(nodes), ExtentSize: mib}
	for _, n := range nodes {
		q.Pools = append(q.Pools, "pool-"+n)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	if _, err := r.api.CreateVolume(ctx, q); err != nil {
		r.t.Fatal(err)
	}
}

// attach attaches a volume explicitly; it waits while the lease of a lost holder runs.
func (r *rig) attach(name, node string) {
	r.t.Helper()
	r.until("volume "+name+" is attached on "+node, patience, func(ctx context.Context) error {
		_, err := r.api.Attach(ctx, name, resource.Attach{Node: node})
		return err
	})
}

func (r *rig) info(name string) resource.Volume {
	r.t.Helper()
	var v resource.Volume
	r.until("volume "+name+" is described", patience, func(ctx context.Context) (err error) {
		v, err = r.api.Volume(ctx, name)
		return err
	})
	return v
}

// redundant waits until all copies of a volume are in-sync, without a hand, and tells how it then stands.
func (r *rig) redundant(name string) (v resource.Volume) {
	r.t.Helper()
	r.until("volume "+name+" is redundant", patience, func(ctx context.Context) (err error) {
		if v, err = r.api.Volume(ctx, name); err != nil {
			return err
		}
		return whole(v)
	})
	return v
}

// whole tells what a volume lacks.
func whole(v resource.Volume) error {
	if !v.Redundant {
		return fmt.Errorf("not redundant: %s", indented(v.Replicas))
	}
	for _, c := range v.Replicas {
		if c.State != "in-sync" || c.OutOfSync > 0 {
			return fmt.Errorf("a copy is not whole: %s", indented(v.Replicas))
		}
	}
	return nil
}

// suspended waits until a volume is shown as suspended, with a cause that contains a word.
func (r *rig) suspended(name, word string) {
	r.t.Helper()
	r.until("volume "+name+" is shown as suspended: "+word, patience, func(ctx context.Context) error {
		v, err := r.api.Volume(ctx, name)
		if err == nil && (v.State != "suspended" || !strings.Contains(v.Suspended, word)) {
			err = fmt.Errorf("state %q, cause %q", v.State, v.Suspended)
		}
		return err
	})
}

// degraded waits until a volume is shown to lack a copy.
func (r *rig) degraded(name string) {
	r.t.Helper()
	r.until("volume "+name+" is shown as not redundant", patience, func(ctx context.Context) error {
		v, err := r.api.Volume(ctx, name)
		if err == nil && v.Redundant {
			err = errors.New("it is redundant")
		}
		return err
	})
}

// holder waits until the node that is asked knows who holds a volume. One that was cut off learns it a moment later.
func (r *rig) holder(name, node string) {
	r.t.Helper()
	r.until("volume "+name+" is shown as held by "+node, patience, func(ctx context.Context) error {
		v, err := r.api.Volume(ctx, name)
		if err == nil && v.Holder != node {
			err = errors.New("held by " + v.Holder)
		}
		return err
	})
}

// healthy waits until the cluster has nothing to complain about.
func (r *rig) healthy() {
	r.t.Helper()
	r.until("the cluster is healthy", patience, func(ctx context.Context) error {
		s, err := r.api.Status(ctx)
		if err == nil && !s.Healthy {
			err = fmt.Errorf("problems: %q", s.Problems)
		}
		return err
	})
}

// equal compares all copies of a volume.
func (r *rig) equal(name string) {
	r.t.Helper()
	copies := len(r.info(name).Replicas)
	r.until("the copies of volume "+name+" are compared", 2*patience, func(ctx context.Context) error {
		v, err := r.api.Verify(ctx, name, nil)
		if err != nil {
			return err
		}
		if !v.Equal || v.Copies != copies {
			r.t.Errorf("copies of volume %s differ, or not all were compared: %s", name, indented(v))
		}
		return nil
	})
}

// recovered waits until a volume is redundant and the cluster healthy, and compares the copies.
func (r *rig) recovered(name string) resource.Volume {
	r.t.Helper()
	v := r.redundant(name)
	r.healthy()
	r.equal(name)
	return v
}

// node is a node by its name.
func (r *rig) node(name string) *dev.Node { return r.Nodes[r.number(name)] }

func (r *rig) number(name string) int {
	for i, n := range r.Nodes {
		if n.Name == name {
			return i
		}
	}
	r.t.Fatalf("there is no node %s", name)
	return 0
}

func (r *rig) kill(names ...string) {
	r.t.Helper()
	for _, name := range names {
		if err := r.node(name).Kill(); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) signal(name string, s syscall.Signal) {
	r.t.Helper()
	if err := r.node(name).Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) restart(names ...string) {
	r.t.Helper()
	for _, name := range names {
		if err := r.StartNode(r.number(name)); err != nil {
			r.t.Fatal(err)
		}
	}
}

// addresses are where nodes serve NBD, in an order.
func (r *rig) addresses(names ...string) []string {
	var out []string
	for _, name := range names {
		out = append(out, r.node(name).Config.NBD)
	}
	return out
}

// samovar runs the command and returns what it printed and its exit code.
func (r *rig) samovar(args ...string) (string, int) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), os.Getenv(binaryVariable), args...)
	cmd.Env = append(os.Environ(), "SAMOVAR_ENDPOINT="+r.Nodes[0].Config.API)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}
