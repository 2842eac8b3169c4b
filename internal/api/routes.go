package api

import (
	_ "embed"
	"net/http"
	"strconv"

	"samovar/internal/api/request"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

//go:embed openapi.json
var description []byte

// Description is the API's OpenAPI document.
func Description() []byte { return append([]byte(nil), description...) }

// handler answers one request; its error becomes a problem.
type handler func(s *Server, w http.ResponseWriter, r *http.Request) error

// route is one line of the API. The samples name the types that travel, for the test of the description.
type route struct {
	method, path string
	query        []string // parameters that it knows
	stream       bool     // without a deadline
	status       int      // of success
	in, out      any
	handle       handler
}

// routes lists the API.
func routes() []route {
	return []route{
		get("/v1/openapi.json", map[string]any(nil), nil).with(serveDescription),
		get("/v1/version", resource.Version{}, func(b Backend, r *http.Request) (any, error) { return b.Version(r.Context()) }),
		get("/v1/status", resource.Status{}, func(b Backend, r *http.Request) (any, error) { return b.Status(r.Context()) }),

		get("/v1/nodes", []resource.Node(nil), func(b Backend, r *http.Request) (any, error) { return list(b.Nodes(r.Context())) }),
		get("/v1/nodes/{name}", resource.Node{}, func(b Backend, r *http.Request) (any, error) {
			name := r.PathValue("name")
			if err := request.NodeName(name); err != nil {
				return nil, err
			}
			return b.Node(r.Context(), name)
		}),

		get("/v1/pools", []resource.Pool(nil), func(b Backend, r *http.Request) (any, error) { return list(b.Pools(r.Context())) }),
		get("/v1/pools/{name}", resource.Pool{}, named("pool", func(b Backend, r *http.Request, name string) (any, error) {
			return b.Pool(r.Context(), name)
		})),
		{method: "POST", path: "/v1/pools", status: http.StatusCreated, in: resource.NewPool{}, out: resource.Pool{}, handle: createPool},

		get("/v1/volumes", []resource.Volume(nil), func(b Backend, r *http.Request) (any, error) { return list(b.Volumes(r.Context())) }),
		get("/v1/volumes/{name}", resource.Volume{}, named("volume", func(b Backend, r *http.Request, name string) (any, error) {
			return b.Volume(r.Context(), name)
		})),
		{method: "POST", path: "/v1/volumes", status: http.StatusCreated, in: resource.NewVolume{}, out: resource.Volume{}, handle: createVolume},
		{method: "DELETE", path: "/v1/volumes/{name}", status: http.StatusNoContent, handle: deleteVolume},
		{method: "POST", path: "/v1/volumes/{name}/attach", status: http.StatusOK, in: resource.Attach{}, out: resource.Attachment{}, handle: attach},
		{method: "POST", path: "/v1/volumes/{name}/detach", status: http.StatusNoContent, handle: detach},
		{method: "POST", path: "/v1/volumes/{name}/verify", status: http.StatusOK, stream: true, handle: verify},

		get("/v1/events", []resource.Event(nil), events).asks("since", "limit"),
		{method: "GET", path: "/v1/events/stream", status: http.StatusOK, stream: true, query: []string{"since"}, handle: streamEvents},
		{method: "GET", path: "/v1/watch", status: http.StatusOK, stream: true, handle: watch},

		{method: "POST", path: "/v1/internal/{call}", status: http.StatusOK, handle: internal},
	}
}

func get(path string, out any, call func(b Backend, r *http.Request) (any, error)) route {
	return route{method: "GET", path: path, status: http.StatusOK, out: out,
		handle: func(s *Server, w http.ResponseWriter, r *http.Request) error {
			value, err := call(s.backend, r)
			if err != nil {
				return err
			}
			return s.answer(w, http.StatusOK, value)
		}}
}

func (r route) with(h handler) route            { r.handle = h; return r }
func (r route) asks(parameters ...string) route { r.query = parameters; return r }

// named checks the name in the path before the call.
func named(object string, call func(b Backend, r *http.Request, name string) (any, error)) func(Backend, *http.Request) (any, error) {
	return func(b Backend, r *http.Request) (any, error) {
		name := r.PathValue("name")
		if err := request.Name(object, name); err != nil {
			return nil, err
		}
		return call(b, r, name)
	}
}

// list makes an empty list of none, which JSON would otherwise show as null.
func list[T any](values []T, err error) (any, error) {
	if values == nil {
		values = []T{}
	}
	return values, err
}

func events(b Backend, r *http.Request) (any, error) {
	limit := request.EventsLimit
	if text := r.URL.Query().Get("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > request.MaxEvents {
			return nil, fault.New(fault.Invalid, "list events", "limit is a number from 1 to "+strconv.Itoa(request.MaxEvents))
		}
	}
	return list(b.Events(r.Context(), r.URL.Query().Get("since"), limit))
}
