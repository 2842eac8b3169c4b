package cli

import (
	"fmt"
	"io"
	"time"

	"samovar/internal/resource"
)

func drawVolumes(w io.Writer, volumes []resource.Volume) {
	t := newTable("NAME", ">SIZE", "COPIES", "STATE", "NODE", "SYNC", "VERIFIED")
	for _, v := range volumes {
		t.add(v.Name, formatSize(v.Size), fmt.Sprintf("%d/%d", inSync(v), v.Copies), v.State, v.Holder, syncState(v), verdict(v.Verified))
	}
	t.write(w)
}

func inSync(v resource.Volume) (n int) {
	for _, r := range v.Replicas {
		if r.State == "in-sync" {
			n++
		}
	}
	return n
}

// syncState says in a few words what the copies lack.
func syncState(v resource.Volume) string {
	behind := uint64(0)
	for _, r := range v.Replicas {
		behind += r.OutOfSync
	}
	switch {
	case v.Progress != nil:
		return progressText(*v.Progress)
	case v.Redundant:
		return "ok"
	case behind > 0:
		return formatSize(behind) + " behind"
	}
	return "not redundant"
}

// progressText says how far a copy or a comparison is.
func progressText(p resource.Progress) string {
	percent := uint64(100)
	if p.Todo > 0 {
		percent = uint64(float64(min(p.Done, p.Todo)) / float64(p.Todo) * 100)
	}
	text := fmt.Sprintf("%d%% of %s", percent, formatSize(p.Todo))
	if p.Rate > 0 {
		text += fmt.Sprintf(", %s/s", formatSize(p.Rate))
	}
	if p.Left != "" {
		text += ", " + p.Left + " left"
	}
	return text
}

func verdict(v *resource.Verified) string {
	switch {
	case v == nil:
		return ""
	case v.Equal:
		return "equal"
	}
	return "DIFFERENT"
}

func drawVolume(w io.Writer, v resource.Volume, zone *time.Location) {
	t := newSheet()
	t.fact("Volume", v.Name)
	t.fact("ID", v.ID)
	t.fact("Size", formatSize(v.Size))
	t.fact("Extent size", formatSize(v.ExtentSize))
	t.fact("State", v.State)
	t.fact("Node", v.Holder)
	t.fact("Attached by", v.Mode)
	t.fact("Suspended", v.Suspended)
	t.fact("Copies", fmt.Sprintf("%d of %d in sync", inSync(v), v.Copies))
	t.fact("Redundant", yes(v.Redundant))
	if v.Progress != nil {
		t.fact("Catching up", progressText(*v.Progress))
	}
	if v.Doubtful > 0 {
		t.fact("Doubtful", formatSize(v.Doubtful))
	}
	if v.Verified != nil {
		t.fact("Verified", fmt.Sprintf("%s, %s of %d copies, %s", verdict(v.Verified), formatSize(v.Verified.Bytes), v.Verified.Copies, moment(v.Verified.At, zone)))
	}
	t.fact("Epoch", fmt.Sprint(v.Epoch))
	t.fact("Generation", fmt.Sprint(v.Generation))
	if v.Attached {
		t.fact("Traffic", fmt.Sprintf("%s sent to other nodes, %s copied to bring copies back", formatSize(v.Sent), formatSize(v.Copied)))
	}
	if v.Address != nil {
		t.fact("Unix socket", v.Address.Socket)
		t.fact("NBD", v.Address.URI)
		t.fact("NBD on its node", v.Address.Local)
	}
	t.write(w)
	fmt.Fprintln(w)
	copies := newTable("POOL", "NODE", "STATE", "CONNECTED", ">BEHIND", ">USED", "CAUSE")
	for _, r := range v.Replicas {
		copies.add(r.Pool, r.Node, r.State, yes(r.Connected), formatSize(r.OutOfSync), formatSize(r.Used), r.Cause)
	}
	copies.write(w)
}
