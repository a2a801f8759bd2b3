; MPB: the bands of light in a triangular lattice of rods.
(set! num-bands 8)
(set! geometry-lattice
  (make lattice (size 1 1 no-size) (basis1 (/ (sqrt 3) 2) 0.5) (basis2 (/ (sqrt 3) 2) -0.5)))
(set! geometry
  (list (make cylinder (center 0 0 0) (radius 0.2) (height infinity) (material (make dielectric (epsilon 12))))))
(set! k-points (interpolate 2 (list (vector3 0 0 0) (vector3 0 0.5 0) (vector3 (/ -3) (/ 3) 0) (vector3 0 0 0))))
(set! resolution 32)
(run-tm)
