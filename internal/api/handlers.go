package api

import (
	"net/http"

	"samovar/internal/api/request"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

func serveDescription(_ *Server, w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(description) // a peer that left needs no answer
	return nil
}

func createPool(s *Server, w http.ResponseWriter, r *http.Request) error {
	var p resource.NewPool
	if err := s.decode(w, r, "create a pool", &p); err != nil {
		return err
	}
	if err := request.Pool(p); err != nil {
		return err
	}
	pool, err := s.backend.CreatePool(r.Context(), p)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/pools/"+pool.Name)
	return s.answer(w, http.StatusCreated, pool)
}

func createVolume(s *Server, w http.ResponseWriter, r *http.Request) error {
	var v resource.NewVolume
	if err := s.decode(w, r, "create a volume", &v); err != nil {
		return err
	}
	if err := request.Volume(v); err != nil {
		return err
	}
	volume, err := s.backend.CreateVolume(r.Context(), v)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/volumes/"+volume.Name)
	return s.answer(w, http.StatusCreated, volume)
}

// volumeName checks the name in the path, and that no body stands where none is wanted.
func (s *Server) volumeName(w http.ResponseWriter, r *http.Request, verb string, body any) (string, error) {
	name := r.PathValue("name")
	if err := request.Name("volume", name); err != nil {
		return "", err
	}
	return name, s.decodeOptional(w, r, verb+" volume "+name, body)
}

func deleteVolume(s *Server, w http.ResponseWriter, r *http.Request) error {
	name, err := s.volumeName(w, r, "delete", &struct{}{})
	if err != nil {
		return err
	}
	if err := s.backend.DeleteVolume(r.Context(), name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func attach(s *Server, w http.ResponseWriter, r *http.Request) error {
	var a resource.Attach
	name, err := s.volumeName(w, r, "attach", &a)
	if err != nil {
		return err
	}
	if err := request.Attach(a); err != nil {
		return err
	}
	attachment, err := s.backend.Attach(r.Context(), name, a)
	if err != nil {
		return err
	}
	return s.answer(w, http.StatusOK, attachment)
}

func detach(s *Server, w http.ResponseWriter, r *http.Request) error {
	name, err := s.volumeName(w, r, "detach", &struct{}{})
	if err != nil {
		return err
	}
	if err := s.backend.Detach(r.Context(), name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func internal(s *Server, w http.ResponseWriter, r *http.Request) error {
	call := r.PathValue("call")
	if err := request.Call(call); err != nil {
		return err
	}
	if s.options.Authorize != nil {
		if err := s.options.Authorize(r); err != nil {
			return err
		}
	}
	body, err := s.body(w, r, "call "+call, request.MaxCallBytes)
	if err != nil {
		return err
	}
	answer, err := s.backend.Internal(r.Context(), call, body)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(answer) // a peer that left needs no answer
	return nil
}

// unknown answers what no route matches, with the methods that the path would have.
func (s *Server) unknown(w http.ResponseWriter, r *http.Request) {
	s.guard(w, r, func(w http.ResponseWriter, r *http.Request) error {
		what := r.Method + " " + clip(r.URL.Path)
		allowed := ""
		for _, method := range []string{"DELETE", "GET", "POST"} {
			probe := r.Clone(r.Context())
			probe.Method = method
			if _, pattern := s.mux.Handler(probe); pattern != "/" {
				if allowed != "" {
					allowed += ", "
				}
				allowed += method
			}
		}
		if allowed == "" {
			return fault.New(fault.NotFound, what, "this node has no such call; /v1/openapi.json lists them")
		}
		w.Header().Set("Allow", allowed)
		return refuse(http.StatusMethodNotAllowed, what, "this path knows "+allowed)
	})
}

func clip(path string) string {
	if len(path) > 200 {
		return path[:200] + "..."
	}
	return path
}
