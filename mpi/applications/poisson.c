/* Solves Poisson's equation on a square by PETSc's conjugate gradients, preconditioned by
 * factorizations of the ranks' blocks, and prints the number of iterations:
 *
 *     cc -O2 poisson.c $(pkg-config --cflags --libs petsc) -o poisson
 *     mpirun -n 4 ./poisson -n 200
 */

#include <petscksp.h>

int main(int count, char **arguments)
{
    PetscInt n = 300, first, end, row, iterations;
    Mat matrix;
    Vec right, solution;
    KSP solver;
    PC preconditioner;

    PetscCall(PetscInitialize(&count, &arguments, NULL, NULL));
    PetscCall(PetscOptionsGetInt(NULL, NULL, "-n", &n, NULL));
    PetscCall(MatCreateAIJ(PETSC_COMM_WORLD, PETSC_DECIDE, PETSC_DECIDE, n * n, n * n, 5, NULL, 4, NULL, &matrix));
    PetscCall(MatGetOwnershipRange(matrix, &first, &end));
    for (row = first; row < end; row++) {
        PetscInt x = row % n, y = row / n, columns[5], entries = 0;
        PetscScalar values[5];

        columns[entries] = row;
        values[entries++] = 4;
        if (x > 0)
            columns[entries] = row - 1, values[entries++] = -1;
        if (x < n - 1)
            columns[entries] = row + 1, values[entries++] = -1;
        if (y > 0)
            columns[entries] = row - n, values[entries++] = -1;
        if (y < n - 1)
            columns[entries] = row + n, values[entries++] = -1;
        PetscCall(MatSetValues(matrix, 1, &row, entries, columns, values, INSERT_VALUES));
    }
    PetscCall(MatAssemblyBegin(matrix, MAT_FINAL_ASSEMBLY));
    PetscCall(MatAssemblyEnd(matrix, MAT_FINAL_ASSEMBLY));
    PetscCall(MatCreateVecs(matrix, &solution, &right));
    PetscCall(VecSet(right, 1));
    PetscCall(KSPCreate(PETSC_COMM_WORLD, &solver));
    PetscCall(KSPSetOperators(solver, matrix, matrix));
    PetscCall(KSPSetType(solver, KSPCG));
    PetscCall(KSPGetPC(solver, &preconditioner));
    PetscCall(PCSetType(preconditioner, PCBJACOBI));
    PetscCall(KSPSetTolerances(solver, 1e-8, PETSC_DEFAULT, PETSC_DEFAULT, PETSC_DEFAULT));
    PetscCall(KSPSetFromOptions(solver));
    PetscCall(KSPSolve(solver, right, solution));
    PetscCall(KSPGetIterationNumber(solver, &iterations));
    PetscCall(PetscPrintf(PETSC_COMM_WORLD, "%" PetscInt_FMT " iterations\n", iterations));
    PetscCall(KSPDestroy(&solver));
    PetscCall(VecDestroy(&right));
    PetscCall(VecDestroy(&solution));
    PetscCall(MatDestroy(&matrix));
    PetscCall(PetscFinalize());
    return 0;
}
