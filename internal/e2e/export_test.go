package e2e

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"samovar/internal/block"
	"samovar/internal/daemon"
	"samovar/internal/dev"
	"samovar/internal/fault"
	"samovar/internal/nbd"
	"samovar/internal/resource"
)

const idleDetach = time.Second

// shortIdle ends automatic attachments soon after their last session.
func shortIdle(_ int, c *daemon.Config) { c.IdleDetach = daemon.Duration(idleDetach) }

// What clients of an export see: who attaches, who is refused, when it ends.
func TestExports(t *testing.T) {
	t.Parallel()
	r := start(t, dev.Options{Nodes: 3, Pools: true, Configure: shortIdle})
	r.create("tea", 16*mib, "n1", "n2")
	t.Run("list and info do not attach", r.testListAndInfo)
	t.Run("automatic attachment", r.testAutomatic)
	t.Run("explicit attachment", r.testExplicit)
	t.Run("read-only export", r.testReadOnly)
	t.Run("flush covers other connections", r.testFlush)
}

func (r *rig) testListAndInfo(t *testing.T) {
	for _, at := range append(r.addresses("n1", "n2", "n3"), r.node("n1").Config.Socket) {
		names, err := nbd.List(t.Context(), at)
		if err != nil || !slices.Contains(names, "tea") {
			t.Errorf("list at %s: %q, %v", at, names, err)
		}
		e, err := nbd.Info(t.Context(), at, "tea")
		if err != nil || e.Size != 16*mib || e.Has(nbd.FlagReadOnly) || !e.Has(nbd.FlagCanMultiConn) {
			t.Errorf("info at %s: %+v, %v", at, e, err)
		}
		if _, err := nbd.Info(t.Context(), at, "coffee"); !fault.Is(err, fault.NotFound) {
			t.Errorf("info about a volume that is not there: %v", err)
		}
	}
	if v := r.info("tea"); v.State != "detached" || v.Epoch != 0 {
		t.Errorf("asking attached the volume: state %s, epoch %d", v.State, v.Epoch)
	}
}

func (r *rig) testAutomatic(t *testing.T) {
	at := r.addresses("n1", "n2")
	d := r.open(t, at[0], "tea")
	if v := r.info("tea"); v.Holder != "n1" || v.Mode != "automatic" {
		t.Errorf("held by %q, %s", v.Holder, v.Mode)
	}
	refusedNaming(t, at[1], "tea", "n1")
	if _, err := r.api.Attach(t.Context(), "tea", resource.Attach{Node: "n2"}); err == nil || !strings.Contains(err.Error(), "n1") {
		t.Errorf("attach elsewhere: %v", err)
	}
	second := r.open(t, at[0], "tea")
	write(t, second, 4096, 1)
	d.Close()
	time.Sleep(2 * idleDetach) // the story: nothing may happen while a session is open
	if v := r.info("tea"); v.State != "attached" {
		t.Errorf("the attachment ended under a session: %s", v.State)
	}
	ended := time.Now()
	second.Close()
	r.detached(t, "tea")
	if took := time.Since(ended); took < idleDetach/2 {
		t.Errorf("the attachment ended %v after the last session, want %v", took, idleDetach)
	}
	// Now it is free, for another node too, and holds what was written.
	d = r.open(t, at[1], "tea")
	holds(t, d, 4096, 1)
	d.Close()
	r.detached(t, "tea")
}

func (r *rig) testExplicit(t *testing.T) {
	r.attach("tea", "n2")
	d := r.open(t, r.addresses("n2")[0], "tea")
	if _, code := r.samovar("volume", "detach", "tea"); code == 0 {
		t.Error("detached under a client's session")
	}
	d.Close()
	time.Sleep(2 * idleDetach) // the story: it outlasts what ends an automatic one
	if v := r.info("tea"); v.State != "attached" || v.Mode != "explicit" || v.Holder != "n2" {
		t.Errorf("an explicit attachment did not last: %s %s", v.State, v.Mode)
	}
	refusedNaming(t, r.addresses("n1")[0], "tea", "n2")
	r.until("the volume is detached by the command", patience, func(context.Context) error {
		if out, code := r.samovar("volume", "detach", "tea"); code != 0 {
			return errors.New(out)
		}
		return nil
	})
	r.detached(t, "tea")
}

func (r *rig) testReadOnly(t *testing.T) {
	at := r.addresses("n1")[0]
	rw := r.open(t, at, "tea")
	defer rw.Close()
	write(t, rw, 8192, 2)
	ro := r.open(t, at, "tea@ro")
	defer ro.Close()
	if !ro.ReadOnly() {
		t.Error("tea@ro is not announced as read-only")
	}
	holds(t, ro, 8192, 2)
	if err := <-begin(ro, stamped(8192, 3)); !fault.Is(err, fault.Permission) {
		t.Errorf("write to tea@ro: %v", err)
	}
	holds(t, rw, 8192, 2)
	refusedNaming(t, r.addresses("n2")[0], "tea@ro", "n1")
}

// A flush on one connection covers what was answered on another: the node is killed right after it, and so is the
// other copy, so that only what is on stable storage counts.
func (r *rig) testFlush(t *testing.T) {
	at := r.addresses("n1")[0]
	a, b := r.open(t, at, "tea"), r.open(t, at, "tea")
	defer a.Close()
	defer b.Close()
	for i := range uint64(64) {
		write(t, a, 1<<20+i*4096, 10+i)
	}
	if err := <-begin(b, &block.Request{Op: block.Flush}); err != nil {
		t.Fatal(err)
	}
	r.kill("n1", "n2")
	r.restart("n1", "n2")
	c := r.open(t, at, "tea")
	for i := range uint64(64) {
		holds(t, c, 1<<20+i*4096, 10+i)
	}
	c.Close()
	r.recovered("tea")
}

// open opens an export; it waits while the volume is on its way in or out.
func (r *rig) open(t *testing.T, at, name string) *nbd.Client {
	t.Helper()
	var d *nbd.Client
	r.until("export "+name+" opens", patience, func(ctx context.Context) (err error) {
		d, err = nbd.Dialer{CloseTimeout: 5 * time.Second}.Dial(ctx, at, name)
		return err
	})
	t.Cleanup(func() { d.Close() })
	return d
}

func (r *rig) detached(t *testing.T, name string) {
	t.Helper()
	r.until("volume "+name+" is detached", patience, func(ctx context.Context) error {
		v, err := r.api.Volume(ctx, name)
		if err == nil && v.State != "detached" {
			err = errors.New("it is " + v.State)
		}
		return err
	})
}

func refusedNaming(t *testing.T, at, name, holder string) {
	t.Helper()
	d, err := nbd.Dial(t.Context(), at, name)
	if err == nil {
		d.Close()
		t.Errorf("export %s opens at %s although node %s holds it", name, at, holder)
	} else if !strings.Contains(err.Error(), "node "+holder) {
		t.Errorf("the refusal of %s does not name node %s: %v", name, holder, err)
	}
}

// stamped makes a write of one block.
func stamped(offset, number uint64) *block.Request {
	q := &block.Request{Op: block.Write, Offset: offset, Length: 4096, Data: block.NewPool().Get(4096)}
	for k := range uint64(8) {
		stamp(q.Data.Bytes()[k*sectorBytes:][:sectorBytes], number, offset/sectorBytes+k)
	}
	return q
}

func write(t *testing.T, d block.Device, offset, number uint64) {
	t.Helper()
	if err := <-begin(d, stamped(offset, number)); err != nil {
		t.Fatal(err)
	}
}

func holds(t *testing.T, d block.Device, offset, number uint64) {
	t.Helper()
	data, err := read(d, offset, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer data.Release()
	if want := stamped(offset, number).Data.Bytes(); !bytes.Equal(data.Bytes(), want) {
		t.Errorf("at %d: %x, want write %d", offset, data.Bytes()[:24], number)
	}
}
